/* Calls each function that takes a path, with many spellings of paths, and prints the results.
 * The first argument chooses the paths: "devices" or "others". The second one is the working directory. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#undef _FORTIFY_SOURCE
#ifdef __x86_64__
#define VERSION 1
#else
#define VERSION 0
#endif

int __open_2(const char *, int);
int __open64_2(const char *, int);
int __openat_2(int, const char *, int);
int __openat64_2(int, const char *, int);
int __xstat(int, const char *, struct stat *);
int __xstat64(int, const char *, struct stat64 *);
int __lxstat(int, const char *, struct stat *);
int __lxstat64(int, const char *, struct stat64 *);
int __fxstatat(int, int, const char *, struct stat *, int);
int __fxstatat64(int, int, const char *, struct stat64 *, int);
ssize_t __readlink_chk(const char *, char *, size_t, size_t);
ssize_t __readlinkat_chk(int, const char *, char *, size_t, size_t);
char *__realpath_chk(const char *, char *, size_t);

/* Prints the error number of the call, also after a success. */
static void end(void)
{
	printf(" [%d]\n", errno);
}

static void opened(int fd)
{
	char text[64];
	int error = errno;
	ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof(text));
	struct stat status;

	printf("%d", fd < 0 ? -1 : 0);
	/* A folder of another file system may have other contents. */
	if (fd >= 0 && !fstat(fd, &status) && S_ISREG(status.st_mode))
		printf(" %.*s", (int)n, text);
	if (fd >= 0)
		close(fd);
	errno = error;
	end();
}

static void stream(FILE *file)
{
	char text[64] = "";
	int error = errno;

	printf("%d", file ? 0 : -1);
	if (file) {
		if (fgets(text, sizeof(text), file))
			printf(" %s", text);
		fclose(file);
	}
	errno = error;
	end();
}

static void status(int result, mode_t mode, dev_t device, long long size)
{
	printf("%d", result);
	if (!result)
		printf(" %o %u:%u", mode, major(device), minor(device));
	if (!result && !S_ISDIR(mode))
		printf(" %lld", size);
	end();
}

static void linked(ssize_t n, const char *text)
{
	printf("%zd %.*s", n, n < 0 ? 0 : (int)n, text);
	end();
}

static void string(char *text)
{
	printf("%s", text ? text : "NULL");
	end();
}

static int is_parent(const char *path)
{
	size_t n = path ? strlen(path) : 0;
	return n > 2 && (!strcmp(path + n - 2, "..") || !strcmp(path + n - 3, "../"));
}

static void listed(const char *path, int n, struct dirent **list)
{
	int i;

	printf("%d", n < 0 ? n : 0);
	/* The redirected folders are missing in the lists of their parents. */
	for (i = 0; i < n && !is_parent(path); i++)
		printf(" %s", list[i]->d_name);
	end();
}

static void folder(DIR *folder)
{
	printf("%s", folder ? "open" : "NULL");
	if (folder) {
		errno = 0;
		printf(" %s", readdir(folder) ? "not empty" : "empty");
		closedir(folder);
	}
	end();
}

#define CALL(name, print)                                                      \
	do {                                                                   \
		printf("%s %d %.99s: ", name, at, path ? path : "NULL");       \
		errno = 77;                                                    \
		print;                                                         \
	} while (0)
#define STAT(name, call)                                                       \
	CALL(name, memset(&s, 0, sizeof(s)); int r = call; status(r, s.st_mode, s.st_rdev, s.st_size))
#define STAT64(name, call)                                                     \
	CALL(name, memset(&l, 0, sizeof(l)); int r = call; status(r, l.st_mode, l.st_rdev, l.st_size))

/* Calls the functions that take a descriptor too. */
static void relative(int fd, int at, const char *path)
{
	struct stat s;
	struct stat64 l;
	struct statx x;
	char text[PATH_MAX];
	ssize_t n;
	int flags[] = { 0, AT_SYMLINK_NOFOLLOW }, i;

	CALL("openat", opened(openat(fd, path, O_RDONLY)));
	CALL("openat64", opened(openat64(fd, path, O_RDONLY | O_NOFOLLOW)));
	/* Another error number is also right for a parent of a redirected folder. */
	if (!is_parent(path))
		CALL("openat with a mode", opened(openat(fd, path, O_RDWR | O_CREAT | O_EXCL, 0600)));
	CALL("__openat_2", opened(__openat_2(fd, path, O_RDONLY)));
	CALL("__openat64_2", opened(__openat64_2(fd, path, O_RDONLY)));
	for (i = 0; i < 2; i++) {
		STAT("fstatat", fstatat(fd, path, &s, flags[i]));
		STAT64("fstatat64", fstatat64(fd, path, &l, flags[i]));
		STAT("__fxstatat", __fxstatat(VERSION, fd, path, &s, flags[i]));
		STAT64("__fxstatat64", __fxstatat64(VERSION, fd, path, &l, flags[i]));
		CALL("statx", int r = statx(fd, path, flags[i], STATX_BASIC_STATS, &x);
		     status(r, x.stx_mode, makedev(x.stx_rdev_major, x.stx_rdev_minor), x.stx_size));
	}
	CALL("faccessat", printf("%d", faccessat(fd, path, R_OK, 0)); end());
	CALL("faccessat", printf("%d", faccessat(fd, path, R_OK, AT_EACCESS)); end());
	CALL("readlinkat", n = readlinkat(fd, path, text, sizeof(text)); linked(n, text));
	CALL("__readlinkat_chk", n = __readlinkat_chk(fd, path, text, 9, 9); linked(n, text));
}

static const char *start;

static void each(int at, const char *path)
{
	struct stat s;
	struct stat64 l;
	struct dirent **list;
	struct dirent64 **list64;
	char text[PATH_MAX];
	ssize_t n;

	relative(AT_FDCWD, at, path);
	CALL("open", opened(open(path, O_RDONLY)));
	CALL("open64", opened(open64(path, O_RDONLY)));
	if (!is_parent(path))
		CALL("open with a mode", opened(open(path, O_RDWR | O_CREAT | O_EXCL, 0600)));
	CALL("__open_2", opened(__open_2(path, O_RDONLY)));
	CALL("__open64_2", opened(__open64_2(path, O_RDONLY)));
	STAT("stat", stat(path, &s));
	STAT64("stat64", stat64(path, &l));
	STAT("lstat", lstat(path, &s));
	STAT64("lstat64", lstat64(path, &l));
	STAT("__xstat", __xstat(VERSION, path, &s));
	STAT64("__xstat64", __xstat64(VERSION, path, &l));
	STAT("__lxstat", __lxstat(VERSION, path, &s));
	STAT64("__lxstat64", __lxstat64(VERSION, path, &l));
	CALL("access", printf("%d", access(path, R_OK)); end());
	CALL("euidaccess", printf("%d", euidaccess(path, R_OK)); end());
	CALL("eaccess", printf("%d", eaccess(path, R_OK)); end());
	CALL("readlink", n = readlink(path, text, sizeof(text)); linked(n, text));
	CALL("__readlink_chk", n = __readlink_chk(path, text, 9, 9); linked(n, text));
	CALL("fopen", stream(fopen(path, "r")));
	CALL("fopen64", stream(fopen64(path, "r")));
	/* Without a path, only the mode of the stream changes. */
	CALL("freopen", stream(freopen(path, "r", fopen("/dev/zero", "r"))));
	CALL("freopen64", stream(freopen64(path, "r", fopen("/dev/zero", "r"))));
	CALL("getxattr", linked(getxattr(path, "user.none", text, sizeof(text)), ""));
	CALL("lgetxattr", linked(lgetxattr(path, "user.none", text, sizeof(text)), ""));
	CALL("listxattr", linked(listxattr(path, text, sizeof(text)), ""));
	CALL("llistxattr", linked(llistxattr(path, text, sizeof(text)), ""));
	if (!path)
		return;
	CALL("opendir", folder(opendir(path)));
	CALL("scandir", n = scandir(path, &list, NULL, alphasort); listed(path, n, list));
	CALL("scandir64", n = scandir64(path, &list64, NULL, alphasort64); listed(path, n, (struct dirent **)list64));
	/* The real path of a device's file is that of the system's file. */
	if (!strstr(path, "uverbs8192") || strstr(path, "device")) {
		CALL("realpath", string(realpath(path, text)));
		CALL("realpath", string(realpath(path, NULL)));
		CALL("__realpath_chk", string(__realpath_chk(path, text, sizeof(text))));
		CALL("canonicalize_file_name", string(canonicalize_file_name(path)));
	}
	CALL("chdir", printf("%d", chdir(path)); end());
	CALL("getcwd", string(getcwd(text, sizeof(text))));
	CALL("getcwd", string(getcwd(NULL, 0)));
	CALL("open in it", opened(open("soft0/node_type", O_RDONLY)));
	CALL("stat in it", n = access("../infiniband_verbs/abi_version", F_OK); printf("%zd", n); end());
	printf("%d\n", chdir(start));
}

static const char *const devices[] = {
	"/sys/class/infiniband/soft0/node_type",
	"//sys/./class//infiniband/soft0///node_type",
	"/sys/class/../class/infiniband/softib0/node_type",
	"/sys/class/infiniband/soft0/../soft0/./node_type",
	"/sys/class/infiniband/../infiniband_verbs/uverbs8192/ibdev",
	"/sys/class/infiniband_verbs/uverbs8192/device",
	"/sys/class/infiniband_verbs/uverbs8192/device/",
	"/sys/class/infiniband_verbs/uverbs8192/device/../node_type",
	"/sys/class/infiniband_verbs/uverbs8192/device/../../soft0/node_type",
	"/sys/class/infiniband/soft0/node_type/",
	"/sys/class/infiniband/soft0/node_type/.",
	"/sys/class/infiniband/soft0/none",
	"/sys/class/infiniband",
	"/sys/class/infiniband/",
	"/sys/class/infiniband/soft0/ports/1/gid_attrs/types",
	"/sys/class/infiniband/..",
	"/sys/class/infiniband/../",
	"/sys/class/infiniband/../net/lo/ifindex",
	"/dev/infiniband/uverbs8192",
	"/dev/infiniband/uverbs8192/",
	"/dev/infiniband/none",
	"/dev/infiniband/../null",
	"/dev/infiniband/../../sys/class/infiniband/soft0/node_type",
	"sys/class/infiniband/soft0/node_type",
	"sys/class/infiniband",
};

static const char *const others[] = {
	"/", "", NULL, "/etc/passwd", "/proc/self/exe", "/dev/null", "/sys/class/net", "/sys/class/net/lo/ifindex",
	"infiniband", "./infiniband", "infiniband/a", "sys/class/infiniband/soft0", "/sys/class/infiniband2", "..",
};

int main(int argc, char **argv)
{
	int is_devices = argc > 2 && !strcmp(argv[1], "devices");
	const char *const *paths = is_devices ? devices : others;
	size_t count = is_devices ? sizeof(devices) / sizeof(*devices) : sizeof(others) / sizeof(*others), i;
	char text[2 * PATH_MAX];
	int fd;

	start = argc > 2 ? argv[2] : "/";
	if (chdir(start))
		return 1;
	for (i = 0; i < count; i++)
		each(0, paths[i]);
	/* Paths that are too long. */
	memset(text, 'a', sizeof(text));
	memcpy(text, "infiniband/", 11);
	text[sizeof(text) - 1] = 0;
	each(1, text);
	text[PATH_MAX - 1] = 0;
	each(2, text);
	if (!is_devices)
		return 0;
	memset(text, '/', sizeof(text));
	memcpy(text, "/sys/class/infiniband", 21);
	strcpy(text + 4000, "/soft0/node_type");
	each(3, text);
	/* Paths that are relative to a descriptor. */
	fd = open("/sys/class", O_RDONLY);
	relative(fd, 4, "infiniband/soft0/node_type");
	relative(fd, 5, "./infiniband/");
	fd = open("/sys/class/infiniband", O_RDONLY);
	relative(fd, 6, "soft0/node_type");
	relative(fd, 7, "../infiniband_verbs/uverbs8192/device");
	fd = open("/dev/infiniband", O_RDONLY);
	relative(fd, 8, "none");
	relative(-1, 9, "infiniband/soft0");
	relative(-1, 10, "/sys/class/infiniband/soft0/node_type");
	fd = open("/dev/null", O_RDONLY);
	relative(fd, 11, "infiniband");
	return 0;
}
