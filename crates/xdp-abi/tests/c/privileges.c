/*
 * What programs for AF_XDP do that takes a privilege with the kernel's sockets.
 *
 *   privileges IF       exits with 0 when all answers are right, without a privilege
 *   privileges map IF   enters a socket into a map of the kernel, with libbpf and privileges
 *
 * The interface exists.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include <xdp/xsk.h>

enum { FRAMES = 64, FRAME = 2048, XSKMAP = 17 };

/* Of <xdp/libxdp.h>, which needs libbpf's headers. */
int xdp_program__attach(void *program, int ifindex, int mode, unsigned int flags);
int xdp_program__attach_multi(void **programs, size_t n, int ifindex, int mode, unsigned int flags);

static struct xsk_umem *umem;
static struct xsk_socket *xsk;
static struct xsk_ring_prod fill, tx;
static struct xsk_ring_cons comp, rx;
static int failures;

static void is(const char *what, long long got, long long expected)
{
	if (got == expected)
		return;
	failures++;
	printf("%s: %lld, not %lld\n", what, got, expected);
}

/* The limit of locked memory can't be raised, and need not be. Other limits are the kernel's. */
static void limits(void)
{
	struct rlimit low = { 65536, 65536 }, none = { RLIM_INFINITY, RLIM_INFINITY }, now;

	is("lower", setrlimit(RLIMIT_MEMLOCK, &low), 0);
	is("raise", setrlimit(RLIMIT_MEMLOCK, &none), 0);
	is("raise", setrlimit64(RLIMIT_MEMLOCK, (struct rlimit64 *)&none), 0);
	is("read", getrlimit(RLIMIT_MEMLOCK, &now), 0);
	is("the limit", now.rlim_max, 65536);
	is("a limit that can't be", setrlimit(RLIMIT_MEMLOCK, &(struct rlimit){ 2, 1 }), -1);
	is("EINVAL", errno, EINVAL);
	low = (struct rlimit){ 0, 0 };
	is("lower", setrlimit(RLIMIT_CORE, &low), 0);
	is("raise another", setrlimit(RLIMIT_CORE, &none), -1);
	is("EPERM", errno, EPERM);
}

static void busy_poll(int fd, int answer)
{
	int on = 1, budget = 256;

	is("SO_PREFER_BUSY_POLL", setsockopt(fd, SOL_SOCKET, SO_PREFER_BUSY_POLL, &on, sizeof(on)), answer);
	is("SO_BUSY_POLL_BUDGET", setsockopt(fd, SOL_SOCKET, SO_BUSY_POLL_BUDGET, &budget, sizeof(budget)), answer);
	is("EPERM", answer && errno != EPERM, 0);
	is("SO_RCVBUFFORCE", setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &budget, sizeof(budget)), -1);
	is("EPERM", errno, EPERM);
}

static void own_program(const char *ifname)
{
	int index = if_nametoindex(ifname);
	void *program = NULL;

	is("attach", xdp_program__attach(NULL, index, 0, 0), -EOPNOTSUPP);
	is("attach", xdp_program__attach_multi(&program, 1, index, 0, 0), -EOPNOTSUPP);
	/* Another interface's is libxdp's. */
	is("attach elsewhere", xdp_program__attach(NULL, 1 << 30, 0, 0) == -EOPNOTSUPP, 0);
}

/* As libxdp does, and a program that has it linked statically. */
static void kernel_socket(void)
{
	for (int i = 0; i < 2; i++) {
		is("socket", socket(AF_XDP, SOCK_RAW, 0), -1);
		is("its error", errno == EPERM || errno == EAFNOSUPPORT, 1);
	}
}

/* Functions of libbpf, which libxdp needs; the program is not linked with it. */
static void map(void)
{
	int (*create)(int, const char *, __u32, __u32, __u32, void *) = dlsym(RTLD_DEFAULT, "bpf_map_create");
	int (*update)(int, const void *, const void *, __u64) = dlsym(RTLD_DEFAULT, "bpf_map_update_elem");
	int key = 0, value = xsk_socket__fd(xsk), sockets;

	if (!create || !update) {
		is("libbpf", 0, 1);
		return;
	}
	sockets = create(XSKMAP, "sockets", 4, 4, 4, NULL);
	is("a map", sockets > 0, 1);
	is("update", update(sockets, &key, &value, 0) < 0, 1);
	is("EOPNOTSUPP", errno, EOPNOTSUPP);
}

int main(int count, char **args)
{
	struct xsk_umem_config memory = { .fill_size = FRAMES, .comp_size = FRAMES, .frame_size = FRAME };
	struct xsk_socket_config config = { .rx_size = FRAMES, .tx_size = FRAMES };
	const char *ifname = args[count - 1];
	void *area = mmap(NULL, FRAMES * FRAME, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int error, unix_socket;

	if (count == 2)
		limits();
	error = xsk_umem__create(&umem, area, FRAMES * FRAME, &fill, &comp, &memory);
	if (!error)
		error = xsk_socket__create(&xsk, ifname, 0, umem, &rx, &tx, &config);
	if (error) {
		printf("%s\n", strerror(-error));
		return 1;
	}
	if (count > 2) {
		map();
		return failures != 0;
	}
	unix_socket = socket(AF_UNIX, SOCK_DGRAM, 0);
	busy_poll(xsk_socket__fd(xsk), 0);
	busy_poll(unix_socket, -1);
	own_program(ifname);
	kernel_socket();
	xsk_socket__delete(xsk);
	is("delete", xsk_umem__delete(umem), 0);
	return failures != 0;
}
