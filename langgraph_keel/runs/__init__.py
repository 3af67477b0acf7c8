"""The runs of graphs, as a saver can see them: which of them go on from where a thread waits, one at a time."""
