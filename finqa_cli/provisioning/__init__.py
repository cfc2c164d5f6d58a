"""What is made before a run: snapshots, images at providers, environments of components."""
