"""What several tests share: helpers of one room in its package, those of many rooms here."""
