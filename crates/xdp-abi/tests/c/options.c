/*
 * The socket options of an AF_XDP program, the statistics of its invalid descriptors, and poll, which wakes the
 * datapath.
 *
 *   options IF        exits with 0 when all values are right; the other side echoes
 *
 * The program waits for each event until it happens.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include <xdp/xsk.h>

enum { FRAMES = 64, FRAME = 2048, RING = 16, PATIENCE = 60 };

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

static struct xdp_statistics statistics(int fd)
{
	struct xdp_statistics all;
	socklen_t len = sizeof(all);

	memset(&all, 0xff, sizeof(all));
	is("XDP_STATISTICS", getsockopt(fd, SOL_XDP, XDP_STATISTICS, &all, &len), 0);
	is("its length", len, sizeof(all));
	return all;
}

static void kick(void)
{
	if (xsk_ring_prod__needs_wakeup(&tx))
		sendto(xsk_socket__fd(xsk), NULL, 0, MSG_DONTWAIT, NULL, 0);
}

/* poll without waiting. */
static short ready(short events)
{
	struct pollfd wait = { .fd = xsk_socket__fd(xsk), .events = events };

	is("poll", poll(&wait, 1, 0) < 0, 0);
	return wait.revents;
}

static void send_one(__u64 addr, __u32 len)
{
	__u32 at = 0;

	is("room in TX", xsk_ring_prod__reserve(&tx, 1, &at), 1);
	*xsk_ring_prod__tx_desc(&tx, at) = (struct xdp_desc){ .addr = addr, .len = len };
	xsk_ring_prod__submit(&tx, 1);
	kick();
}

/* Waits for the completion of a frame. */
static void completes(__u64 addr)
{
	time_t end = time(NULL) + PATIENCE;
	__u32 at = 0;

	while (!xsk_ring_cons__peek(&comp, 1, &at)) {
		if (time(NULL) > end) {
			printf("%llx is not completed\n", (unsigned long long)addr);
			exit(1);
		}
		usleep(100);
	}
	is("the address", *xsk_ring_cons__comp_addr(&comp, at), addr);
	xsk_ring_cons__release(&comp, 1);
}

static void answers(void)
{
	int fd = xsk_socket__fd(xsk), twin = dup(fd), unix_socket = socket(AF_UNIX, SOCK_DGRAM, 0), type;
	struct xdp_mmap_offsets offsets;
	struct xdp_options options = { .flags = -1 };
	struct xdp_statistics all;
	socklen_t len = sizeof(options);

	is("XDP_OPTIONS", getsockopt(fd, SOL_XDP, XDP_OPTIONS, &options, &len), 0);
	is("a copy", options.flags, 0);
	len = sizeof(options) - 1;
	is("XDP_OPTIONS, no room", getsockopt(fd, SOL_XDP, XDP_OPTIONS, &options, &len), -1);
	is("EINVAL", errno, EINVAL);

	len = sizeof(offsets) + 7;
	is("XDP_MMAP_OFFSETS", getsockopt(fd, SOL_XDP, XDP_MMAP_OFFSETS, &offsets, &len), 0);
	is("its length", len, sizeof(offsets));
	is("rx.desc", offsets.rx.desc, (char *)rx.ring - (char *)rx.producer);
	is("tx.consumer", offsets.tx.consumer, (char *)tx.consumer - (char *)tx.producer);
	is("fr.flags", offsets.fr.flags, (char *)fill.flags - (char *)fill.producer);
	is("cr.desc", offsets.cr.desc, (char *)comp.ring - (char *)comp.producer);

	/* As a program with older headers. */
	len = 96;
	is("offsets without flags", getsockopt(fd, SOL_XDP, XDP_MMAP_OFFSETS, &offsets, &len), 0);
	is("its length", len, 96);
	is("tx.producer", ((__u64 *)&offsets)[3], 0);
	len = offsetof(struct xdp_statistics, rx_ring_full);
	is("three counters", getsockopt(fd, SOL_XDP, XDP_STATISTICS, &all, &len), 0);
	is("its length", len, 24);
	len = 23;
	is("no room", getsockopt(fd, SOL_XDP, XDP_STATISTICS, &all, &len), -1);
	is("EINVAL", errno, EINVAL);
	is("nowhere", getsockopt(fd, SOL_XDP, XDP_STATISTICS, NULL, &len), -1);
	is("EFAULT", errno, EFAULT);
	is("what it does not have", getsockopt(fd, SOL_XDP, 99, &all, &len), -1);
	is("EOPNOTSUPP", errno, EOPNOTSUPP);

	/* For every duplicate, and for no other descriptor. */
	statistics(twin);
	len = sizeof(all);
	is("another socket", getsockopt(unix_socket, SOL_XDP, XDP_STATISTICS, &all, &len), -1);
	is("EOPNOTSUPP", errno, EOPNOTSUPP);
	is("no descriptor", getsockopt(-1, SOL_XDP, XDP_STATISTICS, &all, &len), -1);
	is("EBADF", errno, EBADF);
	len = sizeof(type);
	is("another level", getsockopt(unix_socket, SOL_SOCKET, SO_TYPE, &type, &len), 0);
	is("its type", type, SOCK_DGRAM);
	close(twin);
	close(unix_socket);
}

static int by_poll(struct pollfd *wait)
{
	return poll(wait, 1, 1);
}

static int by_ppoll(struct pollfd *wait)
{
	return ppoll(wait, 1, &(struct timespec){ .tv_nsec = 1000000 }, NULL);
}

/* What the header calls in programs built with _FORTIFY_SOURCE. */
int __poll_chk(struct pollfd *fds, nfds_t n, int timeout, size_t bytes);
int __ppoll_chk(struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask, size_t bytes);

static int by_poll_chk(struct pollfd *wait)
{
	return __poll_chk(wait, 1, 1, sizeof(*wait));
}

static int by_ppoll_chk(struct pollfd *wait)
{
	return __ppoll_chk(wait, 1, &(struct timespec){ .tv_nsec = 1000000 }, NULL, sizeof(*wait));
}

/* A frame that is submitted while the datapath sleeps, and no sendto. */
static void wakes(const char *what, int (*wait_by)(struct pollfd *))
{
	struct pollfd wait = { .fd = xsk_socket__fd(xsk), .events = POLLIN };
	time_t end = time(NULL) + PATIENCE;
	__u32 at = 0;

	while (!xsk_ring_prod__needs_wakeup(&tx) && time(NULL) < end)
		usleep(100);
	is("room in TX", xsk_ring_prod__reserve(&tx, 1, &at), 1);
	*xsk_ring_prod__tx_desc(&tx, at) = (struct xdp_desc){ .addr = 0, .len = 60 };
	xsk_ring_prod__submit(&tx, 1);
	while (!xsk_ring_cons__peek(&comp, 1, &at) && time(NULL) < end)
		is(what, wait_by(&wait) < 0, 0);
	is(what, time(NULL) < end, true);
	xsk_ring_cons__release(&comp, 1);
}

/* Valid frames between invalid ones. */
static void counts(void)
{
	static const struct { __u64 addr; __u32 len; } wrong[] = {
		{ FRAMES * FRAME, 60 }, { FRAME - 59, 60 }, { 0, 0 }, { -1ull, 60 }, { 0, -1u },
	};
	int fd = xsk_socket__fd(xsk), n = sizeof(wrong) / sizeof(*wrong);

	for (int i = 0; i < n; i++) {
		send_one(wrong[i].addr, wrong[i].len);
		completes(wrong[i].addr);
		send_one(0, 60);
		completes(0);
		is("tx_invalid_descs", statistics(fd).tx_invalid_descs, i + 1);
	}
	is("tx_ring_empty_descs", statistics(fd).tx_ring_empty_descs > 0, 1);
	is("the session goes on", ready(POLLIN | POLLOUT) & (POLLHUP | POLLERR), 0);
}

/* Frames come back while there are no chunks, then one, then too many. */
static void receives(void)
{
	int fd = xsk_socket__fd(xsk);
	time_t end = time(NULL) + PATIENCE;
	__u32 at = 0;

	do {
		send_one(0, 60);
		completes(0);
	} while (!statistics(fd).rx_fill_ring_empty_descs && time(NULL) < end);
	is("rx_dropped", statistics(fd).rx_dropped > 0, 1);
	is("POLLIN", ready(POLLIN), 0);

	/* An address outside, and more chunks than RX has entries. */
	is("room in FILL", xsk_ring_prod__reserve(&fill, 2 * RING, &at), 2 * RING);
	*xsk_ring_prod__fill_addr(&fill, at) = FRAMES * FRAME;
	for (int i = 1; i < 2 * RING; i++)
		*xsk_ring_prod__fill_addr(&fill, at + i) = (FRAMES - i) * FRAME;
	xsk_ring_prod__submit(&fill, 2 * RING);
	do {
		send_one(0, 60);
		completes(0);
	} while (!statistics(fd).rx_ring_full && time(NULL) < end);
	is("rx_invalid_descs", statistics(fd).rx_invalid_descs, 1);
	is("rx_ring_full", statistics(fd).rx_ring_full > 0, 1);
	is("POLLIN", ready(POLLIN), POLLIN);
	is("RX is full", xsk_ring_cons__peek(&rx, 2 * RING, &at), RING);
	for (int i = 0; i < RING; i++)
		is("its length", xsk_ring_cons__rx_desc(&rx, at + i)->len, 60);
	xsk_ring_cons__release(&rx, RING);
}

/* Sends without taking completions, until the datapath takes no more. */
static void fills(void)
{
	struct pollfd wait = { .fd = xsk_socket__fd(xsk), .events = POLLOUT };
	time_t end = time(NULL) + PATIENCE;
	__u32 at = 0, sent = 0;
	bool room;

	is("POLLOUT", ready(POLLOUT), POLLOUT);
	/* COMPLETION fills, then TX, and in the end poll reports nothing. */
	do {
		while (xsk_ring_prod__reserve(&tx, 1, &at)) {
			*xsk_ring_prod__tx_desc(&tx, at) = (struct xdp_desc){ .addr = 0, .len = 60 };
			xsk_ring_prod__submit(&tx, 1);
			sent++;
		}
		kick();
		room = xsk_prod_nb_free(&tx, RING) || xsk_cons_nb_avail(&comp, RING) < RING || poll(&wait, 1, 20);
	} while (room && time(NULL) < end);
	is("no room", room, false);
	/* Until all completions were taken. */
	for (__u32 back = 0; back < sent; back++)
		completes(0);
	is("poll", poll(&wait, 1, PATIENCE * 1000), 1);
	is("POLLOUT", wait.revents, POLLOUT);
	is("room", xsk_prod_nb_free(&tx, RING) >= RING / 2, 1);
}

int main(int count, char **args)
{
	struct xsk_umem_config memory = { .fill_size = 2 * RING, .comp_size = RING, .frame_size = FRAME };
	struct xsk_socket_config config = { .rx_size = RING, .tx_size = RING, .bind_flags = XDP_USE_NEED_WAKEUP };
	const char *there = count > 1 ? args[1] : "there";
	void *area = mmap(NULL, FRAMES * FRAME, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int error = xsk_umem__create(&umem, area, FRAMES * FRAME, &fill, &comp, &memory);
	struct xdp_statistics all;
	socklen_t len = sizeof(all);
	int twin;

	if (!error)
		error = xsk_socket__create(&xsk, there, 0, umem, &rx, &tx, &config);
	if (error) {
		printf("%s\n", strerror(-error));
		return 1;
	}
	answers();
	wakes("poll", by_poll);
	wakes("ppoll", by_ppoll);
	wakes("__poll_chk", by_poll_chk);
	wakes("__ppoll_chk", by_ppoll_chk);
	counts();
	receives();
	fills();
	twin = dup(xsk_socket__fd(xsk));
	xsk_socket__delete(xsk);
	is("of what is gone", getsockopt(twin, SOL_XDP, XDP_STATISTICS, &all, &len), -1);
	is("EOPNOTSUPP", errno, EOPNOTSUPP);
	is("delete", xsk_umem__delete(umem), 0);
	return failures != 0;
}
