/*
 * Two AF_XDP sockets on one UMEM: each sends what the other one receives, without a copy.
 *
 *   bridge IF IF        exits with 0 when one of the other sides is gone
 *
 * The second socket has FILL and COMPLETION rings of its own (xsk_socket__create_shared). The program
 * waits for both with epoll, and calls the ring helpers as functions, as bindings of other languages do.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <xdp/xsk.h>

enum { FRAMES = 512, FRAME = 2048, POSTED = 128, BURST = 32 };

struct side {
	struct xsk_socket *xsk;
	struct xsk_ring_prod fill, tx;
	struct xsk_ring_cons comp, rx;
	unsigned int posted;
};

/* Calls by address are not inlined. */
static __u32 (*volatile peek)(struct xsk_ring_cons *, __u32, __u32 *) = xsk_ring_cons__peek;
static __u32 (*volatile reserve)(struct xsk_ring_prod *, __u32, __u32 *) = xsk_ring_prod__reserve;
static void (*volatile submit)(struct xsk_ring_prod *, __u32) = xsk_ring_prod__submit;
static void (*volatile release)(struct xsk_ring_cons *, __u32) = xsk_ring_cons__release;
static int (*volatile needs_wakeup)(const struct xsk_ring_prod *) = xsk_ring_prod__needs_wakeup;

static __u64 idle[FRAMES];
static unsigned int idle_count;

static void check(const char *what, int error)
{
	if (!error)
		return;
	fprintf(stderr, "bridge: %s: %s\n", what, strerror(-error));
	exit(1);
}

/* Takes completions, posts chunks. */
static void keep(struct side *side)
{
	__u32 at, n = peek(&side->comp, FRAMES, &at);

	for (__u32 i = 0; i < n; i++)
		idle[idle_count++] = *xsk_ring_cons__comp_addr(&side->comp, at + i) & ~(__u64)(FRAME - 1);
	if (n)
		release(&side->comp, n);
	for (; side->posted < POSTED && idle_count && reserve(&side->fill, 1, &at) == 1; side->posted++) {
		*xsk_ring_prod__fill_addr(&side->fill, at) = idle[--idle_count];
		submit(&side->fill, 1);
	}
}

/* Forwards received frames; returns whether there were any. */
static int move(struct side *from, struct side *to)
{
	__u32 in, out, n;

	keep(from);
	keep(to);
	n = peek(&from->rx, BURST, &in);
	if (!n)
		return 0;
	/* No more frames are in use than a ring has room for. */
	if (reserve(&to->tx, n, &out) != n)
		check("reserve", -ENOBUFS);
	for (__u32 i = 0; i < n; i++)
		*xsk_ring_prod__tx_desc(&to->tx, out + i) = *xsk_ring_cons__rx_desc(&from->rx, in + i);
	submit(&to->tx, n);
	release(&from->rx, n);
	from->posted -= n;
	if (needs_wakeup(&to->tx))
		sendto(xsk_socket__fd(to->xsk), NULL, 0, MSG_DONTWAIT, NULL, 0);
	return 1;
}

int main(int count, char **args)
{
	static struct side one, two;
	struct xsk_umem_config memory = { .fill_size = FRAMES, .comp_size = FRAMES, .frame_size = FRAME };
	struct xsk_socket_config config = { .rx_size = FRAMES, .tx_size = FRAMES, .bind_flags = XDP_USE_NEED_WAKEUP };
	struct epoll_event event = { .events = EPOLLIN };
	struct xsk_umem *umem;
	void *area = mmap(NULL, FRAMES * FRAME, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int waits = epoll_create1(0), gone = 0;

	if (count < 3 || area == MAP_FAILED || waits < 0)
		return 2;
	for (__u64 i = 0; i < FRAMES; i++)
		idle[idle_count++] = i * FRAME;
	check("umem", xsk_umem__create(&umem, area, FRAMES * FRAME, &one.fill, &one.comp, &memory));
	check(args[1], xsk_socket__create(&one.xsk, args[1], 0, umem, &one.rx, &one.tx, &config));
	check(args[2], xsk_socket__create_shared(&two.xsk, args[2], 0, umem, &two.rx, &two.tx, &two.fill, &two.comp,
						 &config));
	check("epoll", epoll_ctl(waits, EPOLL_CTL_ADD, xsk_socket__fd(one.xsk), &event) ? -errno : 0);
	check("epoll", epoll_ctl(waits, EPOLL_CTL_ADD, xsk_socket__fd(two.xsk), &event) ? -errno : 0);
	while (!gone) {
		if (move(&one, &two) | move(&two, &one))
			continue;
		/* Completions do not wake, as with the kernel. */
		if (epoll_wait(waits, &event, 1, 100) == 1)
			gone = event.events & EPOLLHUP;
	}
	xsk_socket__delete(one.xsk);
	xsk_socket__delete(two.xsk);
	check("delete", xsk_umem__delete(umem));
	return 0;
}
