"""What depgraph shows: plain data in, text, pictures and pages out."""
