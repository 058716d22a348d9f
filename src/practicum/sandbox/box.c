/*
 * Boxes without root: a spawner that makes namespaces, and the agent that is pid 1 in them.
 *
 *     practicum-box FD OWNER
 *
 * The spawner is single-threaded and small, so that making a box costs the same however large the
 * trainer is. It lays out once, in a mount namespace of its own, what every box sees; a box begins
 * with a copy of that. OWNER, the pid of who started it, is there to be read in a list of processes.
 * It takes messages from FD, a SOCK_SEQPACKET socket:
 *
 *     F filter      the seccomp program, an array of struct sock_filter
 *     L layout      what every box sees: records of an operation and two strings, each ended by NUL
 *     Z request     go on as a Python interpreter, which will load this code as a library from the
 *                   descriptor; it takes F and C from then on
 *     C numbers     make a box (struct request). Descriptors: the box's own socket, files through
 *                   which a process joins a cgroup, and layers, the lowest first
 *
 * Everything else is said on the box's socket. From the box: "R" when it is ready, with a pidfd of
 * pid 1 ("R1": what is written in it can be a layer of other boxes), "E text" when it cannot be,
 * "S code" when a command and all that it started are dead (code: exit status, or minus the signal).
 * To the box: "X" runs a command with the three descriptors that come along as its streams, "K" kills
 * everything that runs, "L" asks for an "L" with all that is written as a mount that is nowhere,
 * "N" for an "N" with the socket on which a proxy may listen in the box.
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
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/ipc.h>
#include <sys/mount.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <grp.h>
#include <unistd.h>

#ifndef SOURCE
#define SOURCE "unknown"
#endif

enum { NONE, LOOPBACK, PROXY }; /* networks */
enum { PLAIN = '0', READS_ALL = '1', PYTHON = '2' }; /* commands */
enum { PROXY_PORT = 3128, LIBRARY = 200, GUEST = 1000, MAX_MESSAGE = 1 << 19, MAX_FDS = 32, MAX_WORDS = 1 << 16, MAX_NETS = 256 };

struct request {
	long uid, size, inodes, data, processes, files, file_size, network, groups, layers;
};

extern void PyOS_AfterFork_Child(void) __attribute__((weak)); /* of the interpreter, if we are one */

static const char source[] __attribute__((used)) = "practicum-box source " SOURCE;
static char layout[1 << 16];
static size_t layout_size;
static struct sock_filter filter[4096];
static unsigned short filter_size;
static char message[MAX_MESSAGE + 1];
static int control;   /* the spawner's socket */
static int sock = -1; /* the box's socket, or that of the box which is being made */
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
	char space[CMSG_SPACE(sizeof(int))] = {0};
	struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};
	if (fd >= 0) {
		header.msg_control = space;
		header.msg_controllen = sizeof space;
		struct cmsghdr *c = CMSG_FIRSTHDR(&header);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(c), &fd, sizeof(int));
	}
	sendmsg(sock, &header, MSG_NOSIGNAL);
}

static ssize_t take(int from, int *fds, int *count);

/* A box that cannot be ends; a spawner without a layout says so to all who ask for a box. */
static void fail(const char *what)
{
	int error = errno, fds[MAX_FDS], count;
	if (sock >= 0) {
		tell(-1, "E%s: %s", what, strerror(error));
		_exit(1);
	}
	while (take(control, fds, &count) >= 0) {
		if (count > 0) {
			sock = fds[0];
			tell(-1, "E%s: %s", what, strerror(error));
		}
		for (int i = 0; i < count; i++)
			close(fds[i]);
	}
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
	char space[CMSG_SPACE(MAX_FDS * sizeof(int))];
	struct msghdr header = {.msg_iov = &part,
				.msg_iovlen = 1,
				.msg_control = space,
				.msg_controllen = sizeof space};
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
	place("dev/shm", 1);
	symlink("pts/ptmx", "dev/ptmx");
	symlink("/proc/self/fd", "dev/fd");
	symlink("/proc/self/fd/0", "dev/stdin");
	symlink("/proc/self/fd/1", "dev/stdout");
	symlink("/proc/self/fd/2", "dev/stderr");
}

/* Once: below /new what every box sees, beside it an empty place for what each adds. */
static void prepare(void)
{
	must(mount(NULL, "/", NULL, MS_SLAVE | MS_REC, NULL), "/");
	must(mount("base", "/tmp", "tmpfs", 0, "size=64k,mode=755"), "/tmp");
	must(chdir("/tmp"), "/tmp");
	static const char *names[] = {"old", "new", "own", "merged", "proc"};
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		must(mkdir(names[i], 0755), names[i]);
	must(syscall(SYS_pivot_root, ".", "old"), "pivot_root");
	must(mount("/old/proc", "/proc", NULL, MS_BIND, NULL), "/proc"); /* to mount others */
	static const char *seen[] = {"bin", "etc", "lib", "lib64", "opt", "usr"};
	for (size_t i = 0; i < sizeof seen / sizeof *seen; i++) { /* as in a box, for an interpreter */
		char path[16];
		snprintf(path, sizeof path, "/new/%s", seen[i]);
		must(symlink(path, seen[i]), path);
	}
	must(mount("root", "/new", "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755"), "/new");
	must(chdir("/new"), "/new");
	static const char *folders[] = {"proc", "workspace", "tmp", "var"};
	for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
		place(folders[i], 1);
	symlink("../tmp", "var/tmp");
	lay_out();
	make_devices();
	set_attributes("/new/dev", 0, MOUNT_ATTR_RDONLY);
	set_attributes("/new", 0, MOUNT_ATTR_RDONLY);
	must(umount2("/old", MNT_DETACH), "/old");
	must(chdir("/"), "/");
}

/* A sized tmpfs for all that the guest of a box will write, as a mount that is nowhere yet. */
static int make_store(long uid, long gid)
{
	const char *names[] = {"size", "nr_inodes", "mode", "uid", "gid"};
	long values[] = {box.size, box.inodes, 755, uid, gid};
	char text[32];
	int fs = syscall(SYS_fsopen, "tmpfs", FSOPEN_CLOEXEC);
	for (int i = 0; i < 5; i++) {
		snprintf(text, sizeof text, "%ld", values[i]);
		if (syscall(SYS_fsconfig, fs, FSCONFIG_SET_STRING, names[i], text, 0) < 0)
			break;
	}
	syscall(SYS_fsconfig, fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0);
	int store = syscall(SYS_fsmount, fs, FSMOUNT_CLOEXEC,
			    MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV);
	int error = errno;
	close(fs);
	errno = error;
	return store;
}

/* A second mount of one that is nowhere (Linux 6.15 and later). */
static int another(int mount)
{
	return syscall(SYS_open_tree, mount, "",
		       OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH);
}

/* Put the store in its place, over the layers if there are some; can it become a layer? */
static int make_workspace(int store, const int *layers)
{
	static const char *names[][2] = {
		{"workspace", "workspace"}, {"tmp", "tmp"}, {"shm", "dev/shm"}};
	char options[1024], path[64];
	const char *top = "/own/upper";
	int own = another(store), can = own >= 0;
	must(syscall(SYS_move_mount, can ? own : store, "", AT_FDCWD, "/own",
		     MOVE_MOUNT_F_EMPTY_PATH),
	     "/own");
	must(mkdir(top, 0755), top);
	can = can && setxattr(top, "user.overlay.practicum", "y", 1, 0) == 0; /* Linux 6.6 */
	if (box.layers) {
		must(mkdir("/own/work", 0755), "/own/work");
		int n = sprintf(options, "userxattr,volatile,upperdir=%s,workdir=/own/work", top);
		for (int i = box.layers - 1; i >= 0; i--) {
			int layer = another(layers[i]);
			must(layer, "layer");
			n += snprintf(options + n, sizeof options - n, "%s/proc/self/fd/%d/upper",
				      i == box.layers - 1 ? ",lowerdir=" : ":", layer);
		}
		top = "/merged";
		must(mount("box", top, "overlay", MS_NOSUID | MS_NODEV, options), "layers");
	}
	for (int i = 0; i < 3; i++) {
		snprintf(path, sizeof path, "%s/%s", top, names[i][0]);
		if (!box.layers)
			must(mkdir(path, 0755), path);
		must(mount(path, names[i][1], NULL, MS_BIND, NULL), path);
	}
	return can;
}

static int make_root(int store, const int *layers)
{
	must(mount("/new", "/new", NULL, MS_BIND | MS_REC, NULL), "/new");
	must(chdir("/new"), "/new");
	int can_be_layer = make_workspace(store, layers);
	must(mount("devpts", "dev/pts", "devpts", MS_NOSUID | MS_NOEXEC,
		   "newinstance,ptmxmode=0666,mode=620"),
	     "dev/pts");
	must(mount("proc", "proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL), "/proc");
	must(syscall(SYS_pivot_root, ".", "."), "pivot_root");
	must(umount2(".", MNT_DETACH), "base");
	must(chdir("/"), "/");
	return can_be_layer;
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

/* Raise the loopback; a socket on which the host can listen in the box, if there is a proxy. */
static int make_network(void)
{
	struct ifreq lo = {.ifr_name = "lo", .ifr_flags = IFF_UP};
	struct sockaddr_in here = {.sin_family = AF_INET,
				   .sin_port = htons(PROXY_PORT),
				   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	if (box.network == NONE)
		return -1;
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	must(fd, "socket");
	must(ioctl(fd, SIOCSIFFLAGS, &lo), "lo");
	if (box.network == PROXY) {
		must(bind(fd, (struct sockaddr *)&here, sizeof here), "proxy");
		must(listen(fd, 64), "proxy");
		return fd;
	}
	close(fd);
	return -1;
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

/* Take a request apart: folder, count, words, environment. Words end with NULL, as does the rest. */
static char **parse(size_t size, char **folder, char ***environment)
{
	static char *words[MAX_WORDS];
	char *p = message + 2, *end = message + size;
	*folder = p;
	p += strlen(p) + 1;
	long count = strtol(p, NULL, 10), n = 0;
	p += strlen(p) + 1;
	*environment = words;
	for (; p < end && n < MAX_WORDS - 2; p += strlen(p) + 1) {
		words[n++] = p;
		if (--count == 0) {
			words[n++] = NULL;
			*environment = words + n;
		}
	}
	words[n] = NULL;
	return p < end || count > 0 ? NULL : words;
}

/* Become the command: "X", what kind it is, and a request. Returns only as a fork of Python. */
static char **become(size_t size, const int *streams)
{
	char kind = message[1], *folder, **environment, **words = parse(size, &folder, &environment);
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
	if (kind == READS_ALL) {
		set_capabilities(READING, READING, READING);
		must(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_DAC_READ_SEARCH, 0, 0), "ambient");
	} else {
		must(prctl(PR_CAPBSET_DROP, CAP_DAC_READ_SEARCH, 0, 0, 0), "bounding set");
		set_capabilities(0, 0, 0);
	}
	if (!words) {
		dprintf(2, "cannot run: more than %d words\n", MAX_WORDS);
		_exit(126);
	}
	if (chdir(folder) < 0) {
		dprintf(2, "cannot enter %s: %s\n", folder, strerror(errno));
		_exit(126);
	}
	if (kind == PYTHON) {
		prctl(PR_SET_NAME, "python3", 0, 0, 0);
		PyOS_AfterFork_Child();
		return words;
	}
	environ = environment;
	execvp(words[0], words);
	int code = errno == ENOENT ? 127 : 126;
	dprintf(2, "cannot run %s: %s\n", words[0], strerror(errno));
	_exit(code);
}

/* What System V IPC keeps when all its users are dead would be there for the next command. */
static void clear_ipc(void)
{
	union {
		struct shm_info shm;
		struct shmid_ds segment;
		struct seminfo sem;
		struct semid_ds set;
		struct msginfo msg;
		struct msqid_ds queue;
	} u;
	for (int i = shmctl(0, SHM_INFO, (void *)&u); i >= 0; i--)
		shmctl(shmctl(i, SHM_STAT, &u.segment), IPC_RMID, NULL);
	for (int i = semctl(0, 0, SEM_INFO, &u); i >= 0; i--)
		semctl(semctl(i, 0, SEM_STAT, &u), 0, IPC_RMID);
	for (int i = msgctl(0, MSG_INFO, (void *)&u); i >= 0; i--)
		msgctl(msgctl(i, MSG_STAT, &u.queue), IPC_RMID, NULL);
}

/* Returns only as a fork of Python: the words of its command. */
static char **serve(int can_be_layer, int store, int proxy)
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
	int self = syscall(SYS_pidfd_open, 1, 0);
	must(self, "pidfd");
	tell(self, "R%d", can_be_layer);
	close(self);
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
				clear_ipc();
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
			} else if (message[0] == 'L') {
				tell(store, "L");
			} else if (message[0] == 'N') {
				tell(proxy, "N");
			} else if (message[0] == 'X' && count == 3 && !running) {
				running = fork();
				if (running == 0)
					return become(size, streams);
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

static char **be_pid_1(const int *fds, int store, long uid, long gid)
{
	must(prctl(PR_SET_DUMPABLE, 1, 0, 0, 0), "dumpable"); /* else /proc/self is closed to us */
	for (int i = 1; i <= box.groups; i++)
		if (write(fds[i], "0", 1) < 0)
			fail("cgroup");
	must(unshare(CLONE_NEWCGROUP), "cgroup namespace"); /* with the groups as its root */
	map_ids(uid, gid);
	must(setsid(), "setsid");
	int proxy = make_network();
	must(sethostname("box", 3), "hostname");
	prctl(PR_SET_NAME, "practicum-box", 0, 0, 0); /* also where the spawner is Python */
	int can_be_layer = make_root(store, fds + 1 + box.groups);
	/* the only descriptors that stay are the socket, the store, and what the proxy listens on */
	int stay[] = {sock, store, proxy}, to = 3;
	for (int i = 0; i < 3; i++)
		stay[i] = fcntl(stay[i], F_DUPFD_CLOEXEC, 200);
	sock = dup3(stay[0], to++, O_CLOEXEC);
	store = dup3(stay[1], to++, O_CLOEXEC);
	if (proxy >= 0)
		proxy = dup3(stay[2], to++, O_CLOEXEC);
	syscall(SYS_close_range, to, ~0u, 0);
	for (int fd = 0; fd < 3; fd++)
		close(fd);
	open("/dev/null", O_RDWR);
	dup(0);
	dup(0);
	drop_rights();
	return serve(can_be_layer, store, proxy);
}

/* ---- the spawner ---- */

/* Write an id map of the parent process: all that we have, each to itself, or only `id`. */
static int map_parent(const char *name, long id)
{
	char path[64], text[4096];
	snprintf(path, sizeof path, "/proc/self/%s", name);
	FILE *ours = fopen(path, "r");
	unsigned long first, outside, count;
	size_t n = 0;
	while (ours && n < sizeof text - 64 &&
	       fscanf(ours, "%lu %lu %lu", &first, &outside, &count) == 3)
		n += sprintf(text + n, "%lu %lu %lu\n", first, first, count);
	snprintf(path, sizeof path, "/proc/%d/%s", getppid(), name);
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	if (n && write(fd, text, n) > 0)
		return 0;
	n = sprintf(text, "%ld %ld 1", id, id);
	return write(fd, text, n) > 0 ? 0 : -1;
}

/* Where boxes are made: with the host's ids as root, else in a user namespace of our own. */
static void enter(void)
{
	if (unshare(CLONE_NEWNS) == 0)
		return;
	int gate[2], status;
	char path[64];
	must(pipe2(gate, O_CLOEXEC), "pipe");
	pid_t pid = fork(); /* maps are written from outside, where we may have rights */
	must(pid, "fork");
	if (pid == 0) {
		close(gate[1]);
		if (read(gate[0], path, 1) != 1)
			_exit(1);
		if (geteuid() != 0) {
			snprintf(path, sizeof path, "/proc/%d/setgroups", getppid());
			write(open(path, O_WRONLY | O_CLOEXEC), "deny", 4);
		}
		_exit(map_parent("uid_map", geteuid()) || map_parent("gid_map", getegid()) ? 1 : 0);
	}
	must(unshare(CLONE_NEWUSER | CLONE_NEWNS), "namespaces");
	must(write(gate[1], "x", 1), "pipe");
	close(gate[0]);
	close(gate[1]);
	waitpid(pid, &status, 0);
	errno = EPERM;
	must(status ? -1 : 0, "uid_map");
}

/*
 * A network namespace without an interface that is up has no state but the sockets of its processes.
 * Boxes without a network get one in which all are dead rather than a new one, which costs more than
 * everything else of a box.
 */
static struct {
	pid_t pid; /* pid 1 of the box, 0 for a namespace that is free */
	int fd;
} nets[MAX_NETS];

static int enter_net(void)
{
	for (int i = 0; i < MAX_NETS; i++) {
		if (nets[i].pid)
			continue;
		if (nets[i].fd)
			return setns(nets[i].fd, CLONE_NEWNET) < 0 ? -1 : i;
		if (unshare(CLONE_NEWNET) < 0)
			return -1;
		nets[i].fd = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
		if (nets[i].fd > 0)
			return i;
		nets[i].fd = 0;
		return -1;
	}
	return -1;
}

static char **make_box(const int *fds)
{
	uid_t uid = geteuid();
	gid_t own = getegid(), gid = own;
	int other = box.uid != (long)uid, net = box.network == NONE ? enter_net() : -1;
	struct clone_args how = {.flags = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID |
					  CLONE_NEWIPC | CLONE_NEWUTS | (net < 0 ? CLONE_NEWNET : 0),
				 .exit_signal = SIGCHLD};
	if (other)
		gid = box.uid;
	int store = make_store(box.uid, gid);
	if (store < 0) {
		tell(-1, "Eworkspace: %s", strerror(errno));
		return NULL;
	}
	if (other && (setegid(box.uid) < 0 || seteuid(box.uid) < 0)) {
		tell(-1, "Eidentity: %s", strerror(errno));
		return NULL;
	}
	long pid = syscall(SYS_clone3, &how, sizeof how);
	if (pid == 0)
		return be_pid_1(fds, store, box.uid, gid);
	close(store);
	if (pid < 0)
		tell(-1, "Enamespaces: %s", strerror(errno));
	else if (net >= 0)
		nets[net].pid = pid;
	if (other && (seteuid(uid) < 0 || setegid(own) < 0))
		_exit(1);
	return NULL;
}

/* Go on as an interpreter with our rights, which will load this code as a library and call spawn. */
static void become_python(size_t size, int library)
{
	struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
	struct __user_cap_data_struct data[2];
	char *folder, **environment, **words = parse(size, &folder, &environment);
	syscall(SYS_capget, &header, data);
	for (int i = 0; i < 2; i++)
		data[i].inheritable = data[i].permitted;
	syscall(SYS_capset, &header, data);
	for (int cap = 0; cap < 64; cap++)
		prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, cap, 0, 0);
	dup2(library, LIBRARY);
	execve(words[0], words, environment);
	fail(words[0]);
}

static void reap(int ended)
{
	struct signalfd_siginfo info;
	while (read(ended, &info, sizeof info) > 0)
		;
	pid_t pid;
	while ((pid = waitpid(-1, NULL, WNOHANG)) > 0)
		for (int i = 0; i < MAX_NETS; i++)
			if (nets[i].pid == pid)
				nets[i].pid = 0;
}

/* Serve until the host is gone. Returns NULL then, and as a fork of Python the words of a command. */
char **spawn(int from)
{
	control = from;
	sigset_t child;
	sigemptyset(&child);
	sigaddset(&child, SIGCHLD);
	sigprocmask(SIG_BLOCK, &child, NULL);
	int ended = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
	struct pollfd sources[2] = {{control, POLLIN, 0}, {ended, POLLIN, 0}};
	for (;;) {
		if (poll(sources, 2, -1) < 0)
			continue;
		reap(ended);
		if (!sources[0].revents)
			continue;
		int fds[MAX_FDS], count;
		char **words = NULL;
		ssize_t size = take(control, fds, &count);
		if (size < 0)
			return NULL;
		if (message[0] == 'F' && (size_t)size <= sizeof filter) {
			filter_size = (size - 1) / sizeof *filter;
			memcpy(filter, message + 1, filter_size * sizeof *filter);
		} else if (message[0] == 'L' && (size_t)size <= sizeof layout) {
			layout_size = size - 1;
			memcpy(layout, message + 1, layout_size);
			enter();
			setgroups(0, NULL); /* an ordinary user may not, and has no more than its own */
			prepare();
		} else if (message[0] == 'Z' && count == 1) {
			become_python(size, fds[0]);
		} else if (message[0] == 'C' && count > 0 &&
			   sscanf(message + 1, "%ld %ld %ld %ld %ld %ld %ld %ld %ld %ld", &box.uid,
				  &box.size, &box.inodes, &box.data, &box.processes, &box.files,
				  &box.file_size, &box.network, &box.groups, &box.layers) == 10 &&
			   count == 1 + box.groups + box.layers) {
			sock = fds[0];
			words = make_box(fds);
			if (words)
				return words;
			sock = -1;
		}
		for (int i = 0; i < count; i++)
			close(fds[i]);
	}
}

int main(int argc, char **argv)
{
	if (argc == 3)
		return spawn(atoi(argv[1])) != NULL;
	fprintf(stderr, "%s\nusage: practicum-box FD OWNER (started by practicum)\n", source);
	return 2;
}
