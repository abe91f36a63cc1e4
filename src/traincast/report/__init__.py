"""What people and machines read: terminal tables, JSON, traces."""
