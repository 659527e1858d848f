"""The version and the repository's address, readable without importing the package."""

__version__ = "0.2.0"

#: Address that `git clone` takes. The manual and the labs' guide show it where their sources say REPOSITORY.
REPOSITORY = "https://git.example.org/spmdsim.git"
