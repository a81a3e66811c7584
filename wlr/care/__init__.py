"""Care for replicas and farms: status and settings, verification, repair, drills, reports, undoing."""
