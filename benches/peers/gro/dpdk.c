// The cost of DPDK's rte_gro on the mix of mix.h: only its calls are timed.
//
//     dpdk EAL-OPTION… -- hot|cold FLOWS PAYLOAD BURST POOL HOLD PACKETS
//
// HOLD 1 is the burst mode (rte_gro_reassemble_burst), more is the context mode with a flush every HOLD bursts. POOL bursts
// take turns. Before each burst, untimed, all of its metadata is rewritten, which undoes the changes of the engine. Its headers
// are rewritten then as well (hot), or as soon as the engine has returned its buffers (cold): POOL bursts less HOLD earlier,
// with the payload.
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include <rte_cycles.h>
#include <rte_eal.h>
#include <rte_gro.h>
#include <rte_mbuf.h>

#include "mix.h"

typedef struct {
    struct rte_mbuf *mbuf;
    uint8_t header[HEADER];
} slot;

static void reset(const slot *s, unsigned payload) {
    struct rte_mbuf *m = s->mbuf;
    m->next = NULL;
    m->nb_segs = 1;
    m->data_off = RTE_PKTMBUF_HEADROOM;
    m->data_len = m->pkt_len = HEADER + payload;
    m->ol_flags = m->tx_offload = 0;
    m->packet_type = RTE_PTYPE_L2_ETHER | RTE_PTYPE_L3_IPV4 | RTE_PTYPE_L4_TCP;
    m->l2_len = ETHERNET;
    m->l3_len = 20;
    m->l4_len = 32;
}

// A device's part, untimed: the header, and `payload` bytes of the payload.
static void arrive(const slot *slots, unsigned burst, const uint8_t *bytes, unsigned payload) {
    for (unsigned i = 0; i < burst; i++) {
        char *data = (char *)slots[i].mbuf->buf_addr + RTE_PKTMBUF_HEADROOM;
        memcpy(data, slots[i].header, HEADER);
        memcpy(data + HEADER, bytes, payload);
    }
}

int main(int argc, char **argv) {
    int taken = rte_eal_init(argc, argv);
    if (taken < 0 || argc - taken != 8) {
        fputs("usage: dpdk EAL-OPTION... -- hot|cold FLOWS PAYLOAD BURST POOL HOLD PACKETS\n", stderr);
        return 2;
    }
    argv += taken;
    const int cold = !strcmp(argv[1], "cold");
    const unsigned flows = atoi(argv[2]), payload = atoi(argv[3]), burst = atoi(argv[4]);
    const unsigned pool = atoi(argv[5]), hold = atoi(argv[6]);
    const uint64_t packets = atoll(argv[7]);
    const unsigned total = pool * burst, round = hold * burst, ahead = cold ? pool - hold : 0;

    struct rte_mempool *mp =
        rte_pktmbuf_pool_create("mix", total + 4096, 0, 0, RTE_PKTMBUF_HEADROOM + 1728, SOCKET_ID_ANY);
    slot *slots = calloc(total, sizeof *slots);
    struct rte_mbuf **work = calloc(burst, sizeof *work), **out = calloc(round + 64, sizeof *out);
    if (!mp || !slots || !work || !out || HEADER + payload > 1728) {
        fputs("dpdk: no memory\n", stderr);
        return 1;
    }
    uint64_t mix = 0xcbf29ce484222325;
    for (unsigned g = 0; g < total; g++) {
        slots[g].mbuf = rte_pktmbuf_alloc(mp);
        uint8_t *data = rte_pktmbuf_mtod(slots[g].mbuf, uint8_t *);
        unsigned len = packet(data, g % flows, g % round / flows, payload);
        memcpy(slots[g].header, data, HEADER);
        mix = digest(mix, data + ETHERNET, len - ETHERNET);
    }

    unsigned table_flows = flows < 4 ? 4 : flows;
    struct rte_gro_param param = {
        .gro_types = RTE_GRO_TCP_IPV4,
        .max_flow_num = table_flows,
        .max_item_per_flow = round / table_flows + 2,
        .socket_id = 0,
    };
    void *context = hold > 1 ? rte_gro_ctx_create(&param) : NULL;
    if (hold > 1 && !context) {
        fputs("dpdk: no context\n", stderr);
        return 1;
    }
    const uint64_t bursts = packets / round * hold, warm_up = bursts / 10 / hold * hold;
    uint64_t ticks = 0, left = 0;
    uint8_t bytes[1728];
    memcpy(bytes, rte_pktmbuf_mtod(slots[0].mbuf, uint8_t *) + HEADER, payload);
    const unsigned written = cold ? payload : 0;
    for (unsigned b = 0; b < ahead; b++) arrive(slots + b % pool * burst, burst, bytes, written);
    for (uint64_t b = 0; b < bursts; b++) {
        if (b == warm_up) ticks = left = 0;
        const slot *s = slots + b % pool * burst;
        arrive(slots + (b + ahead) % pool * burst, burst, bytes, written);
        for (unsigned i = 0; i < burst; i++) {
            reset(&s[i], payload);
            work[i] = s[i].mbuf;
        }
        uint64_t start = rte_rdtsc();
        if (hold == 1) {
            left += rte_gro_reassemble_burst(work, burst, &param);
        } else {
            left += rte_gro_reassemble(work, burst, context);
            if ((b + 1) % hold == 0) {
                unsigned n;
                do left += n = rte_gro_timeout_flush(context, 0, param.gro_types, out, round + 64);
                while (n == round + 64);
            }
        }
        ticks += rte_rdtsc() - start;
    }
    const double counted = (double)(bursts - warm_up) * burst;
    printf("{\"ns\":%.3f,\"merged\":%.2f,\"mix\":\"%016" PRIx64 "\"}\n", ticks * 1e9 / rte_get_tsc_hz() / counted,
           counted / left, mix);
    return 0;
}
