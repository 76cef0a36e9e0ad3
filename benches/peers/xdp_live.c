// The minimum that makes the kernel send frames by itself: BPF_PROG_TEST_RUN with live frames, as xdp-trafficgen calls it, and a program
// that only redirects to the named interface. Any further cost is the generator's own.
//
//   usage: xdp_live INTERFACE BYTES, until it is killed
#include <linux/bpf.h>
#include <net/if.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

// Frames per call, some seconds of them: they share the wait that an unattached program costs.
enum { FRAMES = 1 << 26, BATCH = 64 };

static long bpf(int command, union bpf_attr *attr) {
    return syscall(SYS_bpf, command, attr, sizeof *attr);
}

int main(int argc, char **argv) {
    uint32_t index = argc == 3 ? if_nametoindex(argv[1]) : 0;
    uint32_t len = argc == 3 ? (uint32_t)atoi(argv[2]) : 0;
    if (!index || len < 14 || len > 3000) {
        fprintf(stderr, "usage: xdp_live INTERFACE BYTES\n");
        return 2;
    }
    struct bpf_insn program[] = {
        {.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 1, .imm = (int)index},
        {.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 2},
        {.code = BPF_JMP | BPF_CALL, .imm = BPF_FUNC_redirect},
        {.code = BPF_JMP | BPF_EXIT},
    };
    union bpf_attr load = {.prog_type = BPF_PROG_TYPE_XDP};
    load.insn_cnt = sizeof program / sizeof *program;
    load.insns = (uintptr_t)program;
    load.license = (uintptr_t)"GPL";
    long fd = bpf(BPF_PROG_LOAD, &load);
    if (fd < 0) {
        perror("xdp_live: BPF_PROG_LOAD");
        return 1;
    }
    uint8_t frame[3000] = {0, 0, 0x5e, 0, 0x53, 2, 0, 0, 0x5e, 0, 0x53, 1, 0x90, 0};
    for (;;) {
        union bpf_attr run;
        memset(&run, 0, sizeof run);
        run.test.prog_fd = (uint32_t)fd;
        run.test.data_in = (uintptr_t)frame;
        run.test.data_size_in = len;
        run.test.repeat = FRAMES;
        run.test.flags = BPF_F_TEST_XDP_LIVE_FRAMES;
        run.test.batch_size = BATCH;
        if (bpf(BPF_PROG_TEST_RUN, &run) < 0) {
            perror("xdp_live: BPF_PROG_TEST_RUN");
            return 1;
        }
    }
}
