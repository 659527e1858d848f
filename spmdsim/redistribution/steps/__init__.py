"""The steps of this package inside groups of ranks: scans, parts, rows of tables, halos."""
