"""A fake of cuda-python."""
