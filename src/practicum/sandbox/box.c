/*
 * Boxes without root: a spawner that makes namespaces, and the agent that is pid 1 in them.
 *
 *     practicum-box FD
 *
 * The spawner is single-threaded and small, so that making a box costs the same however large the
 * trainer is. It takes messages from FD, a SOCK_SEQPACKET socket:
 *
 *     L layout      what every box sees: records of an operation and two strings, each ended by NUL
 *     F filter      the seccomp program, an array of struct sock_filter
 *     C numbers     make a box; the first descriptor is the box's own socket, the others are files
 *                   through which a process joins a cgroup
 *
 * Everything else is said on the box's socket. From the box: "P" with a pidfd of pid 1, "R" when it
 * is ready, "E text" when it cannot be, "S code" when a command and all that it started are dead
 * (code: exit status, or minus the signal). To the box: "X" runs a command with the
 * three descriptors that come along as its streams, "K" kills everything that runs.
 *
 * A box ends when its socket does: whoever dies, the kernel closes the socket, pid 1 exits, and with
 * it all processes and mounts of the box.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/mount.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <grp.h>
#include <unistd.h>

#ifndef SOURCE
#define SOURCE "unknown"
#endif

enum { GUEST = 1000, MAX_MESSAGE = 1 << 19, MAX_FDS = 8, MAX_WORDS = 1 << 16 };

struct request {
	long uid, size, inodes, data, processes, files, file_size;
};

static const char source[] __attribute__((used)) = "practicum-box source " SOURCE;
static char layout[1 << 14];
static size_t layout_size;
static struct sock_filter filter[4096];
static unsigned short filter_size;
static char message[MAX_MESSAGE + 1];
static int sock = -1; /* the box's socket, in processes that belong to a box */
static struct request box;

/* Send a short text on the box's socket, perhaps with a descriptor. */
static void tell(int fd, const char *format, ...)
{
	char text[512];
	va_list arguments;
	va_start(arguments, format);
	int n = vsnprintf(text, sizeof text, format, arguments);
	va_end(arguments);
	if (n >= (int)sizeof text)
		n = sizeof text - 1;
	struct iovec part = {text, n};
	char control[CMSG_SPACE(sizeof(int))] = {0};
	struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};
	if (fd >= 0) {
		header.msg_control = control;
		header.msg_controllen = sizeof control;
		struct cmsghdr *c = CMSG_FIRSTHDR(&header);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(c), &fd, sizeof fd);
	}
	sendmsg(sock, &header, MSG_NOSIGNAL);
}

static void fail(const char *what)
{
	tell(-1, "E%s: %s", what, strerror(errno));
	_exit(1);
}

static void must(int result, const char *what)
{
	if (result < 0)
		fail(what);
}

/* Take a message and its descriptors; its size, or -1 at the end. */
static ssize_t take(int from, int *fds, int *count)
{
	struct iovec part = {message, MAX_MESSAGE};
	char control[CMSG_SPACE(MAX_FDS * sizeof(int))];
	struct msghdr header = {.msg_iov = &part,
				.msg_iovlen = 1,
				.msg_control = control,
				.msg_controllen = sizeof control};
	ssize_t n;
	do
		n = recvmsg(from, &header, MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	*count = 0;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&header); c; c = CMSG_NXTHDR(&header, c))
		if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
			*count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
			memcpy(fds, CMSG_DATA(c), *count * sizeof(int));
		}
	if (n <= 0)
		return -1;
	message[n] = 0;
	return n;
}

static void put(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	must(fd, path);
	if (write(fd, text, strlen(text)) < 0)
		fail(path);
	close(fd);
}

/* ---- what a box sees ---- */

static void set_attributes(const char *path, unsigned how, uint64_t attributes)
{
	struct mount_attr attr = {.attr_set = MOUNT_ATTR_NOSUID | attributes};
	must(syscall(SYS_mount_setattr, AT_FDCWD, path, how, &attr, sizeof attr), path);
}

static void bind_mount(const char *from, const char *to, uint64_t attributes)
{
	must(mount(from, to, NULL, MS_BIND | MS_REC, NULL), to);
	set_attributes(to, AT_RECURSIVE, attributes);
}

/* An empty folder or file to mount on, with its parents. Paths are relative to the new root. */
static void place(const char *path, int folder)
{
	char copy[512];
	snprintf(copy, sizeof copy, "%s", path);
	for (char *p = strchr(copy, '/'); p; p = strchr(p + 1, '/')) {
		*p = 0;
		mkdir(copy, 0755);
		*p = '/';
	}
	if (folder)
		mkdir(copy, 0755);
	else
		close(open(copy, O_CREAT | O_WRONLY | O_CLOEXEC, 0644));
}

static void lay_out(void)
{
	char from[600];
	for (char *p = layout; p < layout + layout_size;) {
		char op = *p++;
		const char *source = p, *target = p + strlen(p) + 1;
		p = (char *)target + strlen(target) + 1;
		struct stat found;
		snprintf(from, sizeof from, "/old%s", source);
		if (op == 'l') {
			must(symlink(source, target), target);
		} else if (stat(from, &found) == 0) {
			place(target, S_ISDIR(found.st_mode));
			bind_mount(from, target, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NODEV);
		} else if (op != '?') {
			fail(source);
		}
	}
}

static void make_devices(void)
{
	static const char *names[] = {"null", "zero", "full", "random", "urandom", "tty"};
	char from[64], to[64];
	place("dev", 1);
	must(mount("dev", "dev", "tmpfs", MS_NOSUID | MS_NOEXEC, "size=64k,nr_inodes=64,mode=755"),
	     "dev");
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		snprintf(from, sizeof from, "/old/dev/%s", names[i]);
		snprintf(to, sizeof to, "dev/%s", names[i]);
		place(to, 0);
		bind_mount(from, to, MOUNT_ATTR_NOEXEC);
	}
	place("dev/pts", 1);
	must(mount("devpts", "dev/pts", "devpts", MS_NOSUID | MS_NOEXEC,
		   "newinstance,ptmxmode=0666,mode=620"),
	     "dev/pts");
	symlink("pts/ptmx", "dev/ptmx");
	symlink("/proc/self/fd", "dev/fd");
	symlink("/proc/self/fd/0", "dev/stdin");
	symlink("/proc/self/fd/1", "dev/stdout");
	symlink("/proc/self/fd/2", "dev/stderr");
}

/* One sized tmpfs holds all that the guest can write. */
static void make_workspace(void)
{
	static const char *names[][2] = {
		{"own/workspace", "workspace"}, {"own/tmp", "tmp"}, {"own/shm", "dev/shm"}};
	char options[128];
	snprintf(options, sizeof options, "size=%ld,nr_inodes=%ld,mode=755", box.size, box.inodes);
	place("own", 1);
	must(mount("box", "own", "tmpfs", MS_NOSUID | MS_NODEV, options), "workspace");
	for (int i = 0; i < 3; i++) {
		must(mkdir(names[i][0], 0755), names[i][0]);
		place(names[i][1], 1);
		bind_mount(names[i][0], names[i][1], MOUNT_ATTR_NODEV);
	}
	must(umount2("own", MNT_DETACH), "own");
	rmdir("own");
	place("var", 1);
	symlink("../tmp", "var/tmp");
}

static void make_root(void)
{
	must(mount(NULL, "/", NULL, MS_SLAVE | MS_REC, NULL), "/");
	must(mount("base", "/tmp", "tmpfs", 0, "size=64k,mode=755"), "/tmp");
	must(mkdir("/tmp/old", 0755), "old");
	must(mkdir("/tmp/new", 0755), "new");
	must(syscall(SYS_pivot_root, "/tmp", "/tmp/old"), "pivot_root");
	must(mount("root", "/new", "tmpfs", MS_NOSUID, "size=1m,mode=755"), "/new");
	must(chdir("/new"), "/new");
	place("proc", 1);
	lay_out();
	make_devices();
	make_workspace();
	must(mount("proc", "proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL), "/proc");
	must(umount2("/old", MNT_DETACH), "/old");
	must(syscall(SYS_pivot_root, ".", "."), "pivot_root");
	must(umount2(".", MNT_DETACH), "base");
	must(chdir("/"), "/");
	set_attributes("/dev", 0, MOUNT_ATTR_RDONLY);
	set_attributes("/", 0, MOUNT_ATTR_RDONLY);
}

/* ---- pid 1 ---- */

static void map_ids(long uid, long gid)
{
	char text[64];
	put("/proc/self/setgroups", "deny");
	snprintf(text, sizeof text, "%d %ld 1", GUEST, uid);
	put("/proc/self/uid_map", text);
	snprintf(text, sizeof text, "%d %ld 1", GUEST, gid);
	put("/proc/self/gid_map", text);
	must(setresgid(GUEST, GUEST, GUEST), "setresgid");
	must(setresuid(GUEST, GUEST, GUEST), "setresuid");
}

static void raise_loopback(void)
{
	struct ifreq lo = {.ifr_name = "lo", .ifr_flags = IFF_UP};
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	must(fd, "socket");
	must(ioctl(fd, SIOCSIFFLAGS, &lo), "lo");
	close(fd);
}

static const uint32_t READING = 1u << CAP_DAC_READ_SEARCH, DROPPING = 1u << CAP_SETPCAP;

static void set_capabilities(uint32_t effective, uint32_t permitted, uint32_t inheritable)
{
	struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
	struct __user_cap_data_struct data[2] = {{effective, permitted, inheritable}, {0, 0, 0}};
	must(syscall(SYS_capset, &header, data), "capset");
}

/* What is left can read the guest's own files, for our copies out of the box; no command has it. */
static void drop_rights(void)
{
	for (int cap = 0; cap < 64; cap++)
		if (cap != CAP_DAC_READ_SEARCH && cap != CAP_SETPCAP)
			prctl(PR_CAPBSET_DROP, cap, 0, 0, 0); /* fails past the last one */
	set_capabilities(0, READING | DROPPING, READING);
	must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs");
	must(prctl(PR_SET_DUMPABLE, 0, 0, 0, 0), "dumpable");
	struct sock_fprog program = {filter_size, filter};
	if (filter_size)
		must(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program), "seccomp");
}

static void limit(int kind, long value)
{
	struct rlimit now;
	getrlimit(kind, &now);
	if (value < 0 || (now.rlim_max != RLIM_INFINITY && (rlim_t)value > now.rlim_max))
		value = now.rlim_max;
	now.rlim_cur = now.rlim_max = value;
	setrlimit(kind, &now);
}

/* Become the command: "X", whether it may read everything, then folder, count, words, environment. */
static void become(size_t size, const int *streams)
{
	static char *words[MAX_WORDS];
	char *p = message + 2, *end = message + size, *folder = p;
	p += strlen(p) + 1;
	long count = strtol(p, NULL, 10), n = 0;
	p += strlen(p) + 1;
	char **environment = words;
	for (; p < end && n < MAX_WORDS - 2; p += strlen(p) + 1) {
		words[n++] = p;
		if (--count == 0) {
			words[n++] = NULL;
			environment = words + n;
		}
	}
	words[n] = NULL;
	prctl(PR_SET_DUMPABLE, 1, 0, 0, 0); /* else our own /proc/self is closed to us */
	setsid();
	for (int i = 0; i < 3; i++)
		dup2(streams[i], i);
	syscall(SYS_close_range, 3, ~0u, 0);
	int fd = open("/proc/self/oom_score_adj", O_WRONLY);
	if (fd >= 0) {
		write(fd, "900", 3);
		close(fd);
	}
	limit(RLIMIT_CORE, 0);
	limit(RLIMIT_NOFILE, box.files);
	limit(RLIMIT_FSIZE, box.file_size);
	limit(RLIMIT_DATA, box.data);
	limit(RLIMIT_NPROC, box.processes);
	umask(022);
	sigset_t none;
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	set_capabilities(DROPPING, READING | DROPPING, READING);
	must(prctl(PR_CAPBSET_DROP, CAP_SETPCAP, 0, 0, 0), "bounding set");
	if (message[1] == '1') {
		set_capabilities(READING, READING, READING);
		must(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_DAC_READ_SEARCH, 0, 0), "ambient");
	} else {
		must(prctl(PR_CAPBSET_DROP, CAP_DAC_READ_SEARCH, 0, 0, 0), "bounding set");
		set_capabilities(0, 0, 0);
	}
	if (p < end || count > 0) {
		dprintf(2, "cannot run: more than %d words\n", MAX_WORDS);
		_exit(126);
	}
	if (chdir(folder) < 0) {
		dprintf(2, "cannot enter %s: %s\n", folder, strerror(errno));
		_exit(126);
	}
	environ = environment;
	execvp(words[0], words);
	int code = errno == ENOENT ? 127 : 126;
	dprintf(2, "cannot run %s: %s\n", words[0], strerror(errno));
	_exit(code);
}

static void serve(void)
{
	sigset_t child;
	sigemptyset(&child);
	sigaddset(&child, SIGCHLD);
	sigprocmask(SIG_BLOCK, &child, NULL);
	int ended = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
	must(ended, "signalfd");
	struct pollfd sources[2] = {{sock, POLLIN, 0}, {ended, POLLIN, 0}};
	pid_t running = 0;
	int code = 0;
	tell(-1, "R");
	for (;;) {
		if (poll(sources, 2, -1) < 0)
			continue;
		if (sources[1].revents) {
			struct signalfd_siginfo info;
			while (read(ended, &info, sizeof info) > 0)
				;
			int status;
			pid_t pid;
			while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
				if (pid == running) {
					code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
					kill(-1, SIGKILL);
				}
			if (pid < 0 && running) { /* none is left */
				running = 0;
				tell(-1, "S%d", code);
			}
		}
		if (sources[0].revents) {
			int streams[MAX_FDS], count;
			ssize_t size = take(sock, streams, &count);
			if (size < 0)
				_exit(0); /* the host is gone, or done with this box */
			if (message[0] == 'K') {
				kill(-1, SIGKILL);
			} else if (message[0] == 'X' && count == 3 && !running) {
				running = fork();
				if (running == 0)
					become(size, streams);
				if (running < 0)
					fail("fork");
			} else {
				errno = EPROTO;
				fail("agent");
			}
			for (int i = 0; i < count; i++)
				close(streams[i]);
		}
	}
}

static void be_pid_1(long uid, long gid)
{
	map_ids(uid, gid);
	must(setsid(), "setsid");
	raise_loopback();
	must(sethostname("box", 3), "hostname");
	make_root();
	dup2(sock, 3); /* the only descriptor that stays */
	sock = 3;
	fcntl(sock, F_SETFD, FD_CLOEXEC);
	syscall(SYS_close_range, 4, ~0u, 0);
	for (int fd = 0; fd < 3; fd++)
		close(fd);
	open("/dev/null", O_RDWR);
	dup(0);
	dup(0);
	drop_rights();
	serve();
}

/* ---- the spawner ---- */

/* In a process of its own: join the cgroups, become the box's user, and clone pid 1. */
static void make_box(const int *fds, int count)
{
	sock = fds[0];
	for (int i = 1; i < count; i++)
		if (write(fds[i], "0", 1) < 0)
			fail("cgroup");
	if (box.uid != (long)geteuid()) {
		must(setgroups(0, NULL), "setgroups");
		must(setresgid(box.uid, box.uid, box.uid), "setresgid");
		must(setresuid(box.uid, box.uid, box.uid), "setresuid");
		/* a change of identity hides /proc/self from us */
		must(prctl(PR_SET_DUMPABLE, 1, 0, 0, 0), "dumpable");
	}
	long uid = geteuid(), gid = getegid();
	int pidfd = -1;
	struct clone_args how = {
		.flags = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC |
			 CLONE_NEWUTS | CLONE_NEWCGROUP | CLONE_PIDFD | CLONE_PARENT,
		.pidfd = (uintptr_t)&pidfd};
	long pid = syscall(SYS_clone3, &how, sizeof how);
	must(pid, "namespaces");
	if (pid == 0)
		be_pid_1(uid, gid);
	tell(pidfd, "P");
	_exit(0);
}

int main(int argc, char **argv)
{
	if (argc != 2) {
		fprintf(stderr, "%s\nusage: practicum-box FD (started by practicum)\n", source);
		return 2;
	}
	int control = atoi(argv[1]);
	struct pollfd sources[2] = {{control, POLLIN, 0}, {-1, POLLIN, 0}};
	sigset_t child;
	sigemptyset(&child);
	sigaddset(&child, SIGCHLD);
	sigprocmask(SIG_BLOCK, &child, NULL);
	sources[1].fd = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
	for (;;) {
		if (poll(sources, 2, -1) < 0)
			continue;
		struct signalfd_siginfo info;
		while (read(sources[1].fd, &info, sizeof info) > 0)
			;
		while (waitpid(-1, NULL, WNOHANG) > 0)
			;
		if (!sources[0].revents)
			continue;
		int fds[MAX_FDS], count;
		ssize_t size = take(control, fds, &count);
		if (size < 0)
			return 0;
		if (message[0] == 'L' && (size_t)size <= sizeof layout) {
			layout_size = size - 1;
			memcpy(layout, message + 1, layout_size);
		} else if (message[0] == 'F' && (size_t)size <= sizeof filter) {
			filter_size = (size - 1) / sizeof *filter;
			memcpy(filter, message + 1, filter_size * sizeof *filter);
		} else if (message[0] == 'C' && count > 0 &&
			   sscanf(message + 1, "%ld %ld %ld %ld %ld %ld %ld", &box.uid, &box.size,
				  &box.inodes, &box.data, &box.processes, &box.files,
				  &box.file_size) == 7) {
			pid_t pid = fork();
			if (pid == 0)
				make_box(fds, count);
			sock = fds[0];
			if (pid < 0)
				tell(-1, "Efork: %s", strerror(errno));
		}
		for (int i = 0; i < count; i++)
			close(fds[i]);
	}
}
