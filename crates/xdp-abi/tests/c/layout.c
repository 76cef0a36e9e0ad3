/* Compiled with -D…: sizes, offsets and constants of the Rust side must equal those of the headers. */
#include <stddef.h>
#include <xdp/xsk.h>

#define SAME(type, field, at) _Static_assert(offsetof(struct type, field) == (at), #type "." #field)
#define RING(type)                             \
	SAME(type, cached_prod, RING_CACHED_PROD); \
	SAME(type, cached_cons, RING_CACHED_CONS); \
	SAME(type, mask, RING_MASK);               \
	SAME(type, size, RING_SIZE);               \
	SAME(type, producer, RING_PRODUCER);       \
	SAME(type, consumer, RING_CONSUMER);       \
	SAME(type, ring, RING_RING);               \
	SAME(type, flags, RING_FLAGS);             \
	_Static_assert(sizeof(struct type) == RING_BYTES, #type)

RING(xsk_ring_prod);
RING(xsk_ring_cons);
SAME(xdp_desc, addr, DESC_ADDR);
SAME(xdp_desc, len, DESC_LEN);
SAME(xdp_desc, options, DESC_OPTIONS);
_Static_assert(sizeof(struct xdp_desc) == DESC_BYTES, "xdp_desc");
SAME(xsk_umem_config, fill_size, UMEM_FILL_SIZE);
SAME(xsk_umem_config, comp_size, UMEM_COMP_SIZE);
SAME(xsk_umem_config, frame_size, UMEM_FRAME_SIZE);
SAME(xsk_umem_config, frame_headroom, UMEM_FRAME_HEADROOM);
SAME(xsk_umem_config, flags, UMEM_FLAGS);
_Static_assert(sizeof(struct xsk_umem_config) == UMEM_BYTES, "xsk_umem_config");
SAME(xsk_socket_config, rx_size, SOCKET_RX_SIZE);
SAME(xsk_socket_config, tx_size, SOCKET_TX_SIZE);
SAME(xsk_socket_config, libxdp_flags, SOCKET_LIBXDP_FLAGS);
SAME(xsk_socket_config, xdp_flags, SOCKET_XDP_FLAGS);
SAME(xsk_socket_config, bind_flags, SOCKET_BIND_FLAGS);
_Static_assert(sizeof(struct xsk_socket_config) == SOCKET_BYTES, "xsk_socket_config");
_Static_assert(XDP_COPY == BIND_COPY && XDP_ZEROCOPY == BIND_ZEROCOPY, "bind flags");
_Static_assert(XDP_USE_NEED_WAKEUP == BIND_NEED_WAKEUP, "bind flags");
_Static_assert(XDP_UMEM_UNALIGNED_CHUNK_FLAG == UMEM_UNALIGNED, "UMEM flags");
_Static_assert(XSK_LIBXDP_FLAGS__INHIBIT_PROG_LOAD == INHIBIT_PROG_LOAD, "libxdp flags");
_Static_assert(XSK_RING_CONS__DEFAULT_NUM_DESCS == DEFAULT_RING, "default size of rings");
_Static_assert(XSK_UMEM__DEFAULT_FRAME_SIZE == DEFAULT_FRAME, "default size of frames");
_Static_assert(XSK_UNALIGNED_BUF_OFFSET_SHIFT == OFFSET_SHIFT, "addresses of unaligned chunks");

/* Since libxdp 1.5. */
#ifdef xsk_umem_opts__last_field
SAME(xsk_umem_opts, size, UMEM_OPTS_SIZE);
SAME(xsk_umem_opts, tx_metadata_len, UMEM_OPTS_TX_METADATA_LEN);
_Static_assert(sizeof(struct xsk_umem_opts) == UMEM_OPTS_BYTES, "xsk_umem_opts");
SAME(xsk_socket_opts, comp, SOCKET_OPTS_COMP);
SAME(xsk_socket_opts, bind_flags, SOCKET_OPTS_BIND_FLAGS);
_Static_assert(sizeof(struct xsk_socket_opts) == SOCKET_OPTS_BYTES, "xsk_socket_opts");
#endif
