/* STAND-IN for NVIDIA's kernel module: it loads, tells its version as the real one does, and drives nothing. */
#include <linux/module.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>

void nvidia_stand_in(void);
void nvidia_stand_in(void)
{
}
EXPORT_SYMBOL(nvidia_stand_in);

static int show(struct seq_file *file, void *unused)
{
	seq_puts(file, "NVRM version: NVIDIA UNIX @BANNER@  @VERSION@  STAND-IN\n");
	seq_puts(file, "GCC version:  STAND-IN\n");
	return 0;
}

static int __init stand_in_init(void)
{
	struct proc_dir_entry *folder = proc_mkdir("driver/nvidia", NULL);

	if (!folder)
		return -ENOMEM;
	if (!proc_create_single("version", 0444, folder, show)) {
		proc_remove(folder);
		return -ENOMEM;
	}
	pr_info("nvidia: STAND-IN @VERSION@ loaded\n");
	return 0;
}

static void __exit stand_in_exit(void)
{
	remove_proc_subtree("driver/nvidia", NULL);
}

module_init(stand_in_init);
module_exit(stand_in_exit);
MODULE_DESCRIPTION("STAND-IN for NVIDIA's driver");
MODULE_LICENSE("@LICENSE@");
MODULE_VERSION("@VERSION@");
