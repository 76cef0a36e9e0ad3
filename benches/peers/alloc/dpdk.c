// The cost of DPDK's packet buffers, for bursts of 64: allocated in bulk, prepared, freed in bulk; the same 64 all the time, from
// the cache of this core. Prints a line of JSON: nanoseconds a packet.
//
//     dpdk EAL-OPTION… -- prepare|bulk|fast ROUNDS CACHE
//
//   prepare   rte_pktmbuf_alloc_bulk, rte_pktmbuf_free_bulk
//   bulk      the same, with 60 bytes claimed in each packet
//   fast      freed by rte_mempool_put_bulk, without a look at the packets: what drivers do with MBUF_FAST_FREE
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <rte_eal.h>
#include <rte_mbuf.h>

enum { BURST = 64 };

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static int usage(void) {
    fputs("usage: dpdk EAL-OPTION... -- prepare|bulk|fast ROUNDS CACHE\n", stderr);
    return 2;
}

int main(int argc, char **argv) {
    int taken = rte_eal_init(argc, argv);
    if (taken < 0 || argc - taken != 4) return usage();
    const char *operation = argv[taken + 1];
    const int claim = !strcmp(operation, "bulk"), fast = !strcmp(operation, "fast");
    if (!claim && !fast && strcmp(operation, "prepare")) return usage();
    const uint64_t rounds = strtoull(argv[taken + 2], NULL, 10);
    struct rte_mempool *pool =
        rte_pktmbuf_pool_create("pool", 4095, atoi(argv[taken + 3]), 0, RTE_MBUF_DEFAULT_BUF_SIZE, SOCKET_ID_ANY);
    if (!pool || !rounds) {
        fputs("dpdk: no memory, or no rounds\n", stderr);
        return 1;
    }
    struct rte_mbuf *burst[BURST];
    uint64_t begun = 0;
    for (uint64_t round = 0; round < rounds + rounds / 10; round++) {
        if (round == rounds / 10) begun = now(); // what comes before is the warm-up
        if (rte_pktmbuf_alloc_bulk(pool, burst, BURST)) {
            fputs("dpdk: the pool is empty\n", stderr);
            return 1;
        }
        if (claim)
            for (unsigned i = 0; i < BURST; i++)
                if (!rte_pktmbuf_append(burst[i], 60)) return 1;
        __asm__ volatile("" : : "r"(burst) : "memory");
        if (fast)
            rte_mempool_put_bulk(pool, (void **)burst, BURST);
        else
            rte_pktmbuf_free_bulk(burst, BURST);
    }
    printf("{\"ns\":%.3f}\n", (double)(now() - begun) / rounds / BURST);
    return 0;
}
