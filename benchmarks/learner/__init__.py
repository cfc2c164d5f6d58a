"""What an update of the learner costs, against other forms of the same update."""
