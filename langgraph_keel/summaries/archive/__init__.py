"""What was taken out of conversations: kept, read, and put back."""
