/* Invalid arguments are refused with the errno of libxdp and the kernel, and nothing changes. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xdp/xsk.h>

static int failures;

static void is(const char *what, int got, int expected)
{
	if (got == expected)
		return;
	failures++;
	printf("%s: %d (%s), not %d (%s)\n", what, got, strerror(-got), expected, strerror(-expected));
}

enum { SIZE = 64 * 4096 };

int main(int count, char **args)
{
	struct xsk_ring_prod fill, fill2, tx;
	struct xsk_ring_cons comp, comp2, rx;
	struct xsk_umem *umem = NULL;
	struct xsk_socket *xsk = NULL, *other = NULL;
	const char *there = count > 1 ? args[1] : "there";
	char *area = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *shared = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct xsk_umem_config wrong[] = {
		{ .fill_size = 100, .comp_size = 64, .frame_size = 4096 },
		{ .fill_size = 64, .comp_size = 0, .frame_size = 4096 },
		{ .fill_size = 64, .comp_size = 64, .frame_size = 3000 },
		{ .fill_size = 64, .comp_size = 64, .frame_size = 100000, .flags = XDP_UMEM_UNALIGNED_CHUNK_FLAG },
		{ .fill_size = 64, .comp_size = 64, .frame_size = 0 },
		{ .fill_size = 64, .comp_size = 64, .frame_size = 4096, .frame_headroom = 4096 },
		{ .fill_size = 64, .comp_size = 64, .frame_size = 4096, .frame_headroom = -1 },
		{ .fill_size = 64, .comp_size = 64, .frame_size = 4096, .flags = 1u << 31 },
	};
	struct xsk_socket_config config = { .rx_size = 64, .tx_size = 64 }, odd = config;
	int map = -1;

	strcpy(area, "bytes");
	is("no umem", xsk_umem__create(NULL, area, SIZE, &fill, &comp, NULL), -EFAULT);
	is("no area", xsk_umem__create(&umem, NULL, SIZE, &fill, &comp, NULL), -EFAULT);
	is("no fill", xsk_umem__create(&umem, area, SIZE, NULL, &comp, NULL), -EFAULT);
	is("no comp", xsk_umem__create(&umem, area, SIZE, &fill, NULL, NULL), -EFAULT);
	is("no size", xsk_umem__create(&umem, area, 0, &fill, &comp, NULL), -EINVAL);
	is("odd area", xsk_umem__create(&umem, area + 64, SIZE / 2, &fill, &comp, NULL), -EINVAL);
	is("odd size", xsk_umem__create(&umem, area, SIZE - 1, &fill, &comp, NULL), -EINVAL);
	is("too large", xsk_umem__create(&umem, area, -4096ull, &fill, &comp, NULL), -EINVAL);
	is("beyond", xsk_umem__create(&umem, area, 1ull << 31, &fill, &comp, NULL), -EFAULT);
	is("shared", xsk_umem__create(&umem, shared, SIZE, &fill, &comp, NULL), -EOPNOTSUPP);
	for (unsigned int i = 0; i < sizeof(wrong) / sizeof(*wrong); i++)
		is("config", xsk_umem__create(&umem, area, SIZE, &fill, &comp, &wrong[i]), -EINVAL);
	is("umem", xsk_umem__create(&umem, area, SIZE, &fill, &comp, NULL), 0);
	is("the same bytes", strcmp(area, "bytes"), 0);

	is("no socket", xsk_socket__create(NULL, there, 0, umem, &rx, &tx, NULL), -EFAULT);
	is("no name", xsk_socket__create(&xsk, NULL, 0, umem, &rx, &tx, NULL), -EFAULT);
	is("no memory", xsk_socket__create(&xsk, there, 0, NULL, &rx, &tx, NULL), -EFAULT);
	is("no rings", xsk_socket__create(&xsk, there, 0, umem, NULL, NULL, NULL), -EFAULT);
	is("nowhere", xsk_socket__create(&xsk, "nowhere", 0, umem, &rx, &tx, NULL), -ENODEV);
	is("nobody", xsk_socket__create(&xsk, "nobody", 0, umem, &rx, &tx, NULL), -ENOENT);
	is("no interface", xsk_socket__create(&xsk, "../../dev/null", 0, umem, &rx, &tx, NULL), -EINVAL);
	odd.rx_size = 100;
	is("odd ring", xsk_socket__create(&xsk, there, 0, umem, &rx, &tx, &odd), -EINVAL);
	odd = config;
	odd.libxdp_flags = 1u << 5;
	is("odd flag", xsk_socket__create(&xsk, there, 0, umem, &rx, &tx, &odd), -EINVAL);
	odd = config;
	odd.bind_flags = XDP_COPY | XDP_ZEROCOPY;
	is("both", xsk_socket__create(&xsk, there, 0, umem, &rx, &tx, &odd), -EINVAL);
	odd.bind_flags = XDP_ZEROCOPY;
	is("zero-copy", xsk_socket__create(&xsk, there, 0, umem, &rx, &tx, &odd), -EOPNOTSUPP);
	odd.bind_flags = XDP_COPY;
	is("copy", xsk_socket__create(&xsk, there, 0, umem, &rx, &tx, &odd), 0);
	is("size", rx.size == 64 && tx.size == 64 && fill.size == 2048 && comp.size == 2048, 1);

	is("twice", xsk_socket__create(&other, there, 0, umem, &rx, &tx, &config), -EOPNOTSUPP);
	is("taken", xsk_socket__create(&other, there, 1, umem, &rx, &tx, &config), -EFAULT);
	is("taken", xsk_socket__create_shared(&other, there, 1, umem, &rx, &tx, NULL, &comp2, &config), -EFAULT);
	is("more", xsk_socket__create_shared(&other, there, 1, umem, NULL, &tx, &fill2, &comp2, &config), 0);
	is("in use", xsk_umem__delete(umem), -EBUSY);
	is("fd", xsk_socket__fd(xsk) >= 0 && xsk_umem__fd(umem) >= 0, 1);
	is("fd of nothing", xsk_socket__fd(NULL), -EINVAL);
	is("fd of nothing", xsk_umem__fd(NULL), -EINVAL);
	is("program", xsk_setup_xdp_prog(1, &map), 0);
	is("map", xsk_socket__update_xskmap(xsk, map), 0);
	is("map of nothing", xsk_socket__update_xskmap(NULL, map), -EINVAL);
	is("close", close(map), 0);

	xsk_socket__delete(other);
	is("still in use", xsk_umem__delete(umem), -EBUSY);
	xsk_socket__delete(xsk);
	xsk_socket__delete(NULL);
	is("delete", xsk_umem__delete(umem), 0);
	is("delete nothing", xsk_umem__delete(NULL), 0);
	is("the same bytes", strcmp(area, "bytes"), 0);
	is("again", xsk_umem__create(&umem, area, SIZE, &fill, &comp, NULL), 0);
	is("delete", xsk_umem__delete(umem), 0);
	return failures != 0;
}
