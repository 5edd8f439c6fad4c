//! Models of disks and SSDs, shared by the simulator and the emulated device of a forwarder.
