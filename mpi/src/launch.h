// Whether all ranks of this job have the shim.
#ifndef TIDEGATE_LAUNCH_H
#define TIDEGATE_LAUNCH_H

// 0 if ranks on other nodes may lack it. The same on all ranks that ask.
int launch_is_whole(void);

#endif
