"""The fault kit: for users who test their own tools as hard as this project tests itself."""
