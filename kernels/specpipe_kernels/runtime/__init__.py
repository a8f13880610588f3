"""Choice of the implementation, compilation ahead of time, launch options, and the device's timestamps."""
