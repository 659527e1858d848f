"""What happens: who runs, how messages meet their receives, how collectives are answered, what it takes."""
