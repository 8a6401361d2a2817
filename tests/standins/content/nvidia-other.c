/* STAND-IN for @NAME@: it loads after nvidia, as the real one does, and drives nothing. */
#include <linux/module.h>

void nvidia_stand_in(void);

static int __init stand_in_init(void)
{
	nvidia_stand_in();
	return 0;
}

static void __exit stand_in_exit(void)
{
}

module_init(stand_in_init);
module_exit(stand_in_exit);
MODULE_DESCRIPTION("STAND-IN for NVIDIA's driver");
MODULE_LICENSE("@LICENSE@");
MODULE_VERSION("@VERSION@");
