"""Write HTML reports as single files: no network access, a strict content security policy, reproducible bytes."""
