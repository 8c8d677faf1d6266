/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * How fast rows go from device to device by UCX, without a stop in host memory: the traffic of a dispatch, a rank for
 * each device, once by a put for each row and once gathered by a kernel and put in chunks; beside it by way of host
 * memory. Needs a UCX that knows CUDA (the wheel libucx-cu13, $U its folder libucx), and no xep:
 *
 *     nvcc -O2 -arch=sm_90 -I $U/include -o cuda_puts test/bench/cuda_puts.cu -L $U/lib -lucp -lucs
 *     UCX_TLS=cuda_ipc,cuda_copy,posix,cma,self LD_LIBRARY_PATH=$U/lib ./cuda_puts [ranks [tokens]]
 */
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <vector>

#include <cuda_runtime.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

enum { RANKS = 8, ROW = 14336, KEY = 4096, PARTS = 8, BLOCKS = 24, EXPERTS = 256, TOPK = 8, WORDS = 64, AT_ONCE = 7 };

struct shared {
    volatile int step[RANKS];
    size_t key_bytes[2][RANKS], address_bytes[RANKS];
    char key[2][RANKS][KEY], address[RANKS][KEY];
    uint64_t base[2][RANKS];
    volatile double took[RANKS];
};

static shared *board;
static int me, ranks = 2, step;
static size_t tokens = 4096;

static double now()
{
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec * 1e-3;
}

#define CUDA(_call)                                                        \
    do {                                                                   \
        cudaError_t error = (_call);                                       \
        if (error != cudaSuccess) fail(#_call, cudaGetErrorString(error)); \
    } while (0)
#define UCX(_call)                                                   \
    do {                                                             \
        ucs_status_t error = (_call);                                \
        if (error != UCS_OK) fail(#_call, ucs_status_string(error)); \
    } while (0)

static void fail(const char *what, const char *why)
{
    printf("rank %d: %s: %s\n", me, what, why);
    fflush(stdout);
    _exit(1);
}

/* ---- a rank ---- */

struct memory {
    char *base;
    ucp_mem_h handle;
    ucp_rkey_h key[RANKS];
};

static ucp_context_h context;
static ucp_worker_h worker;
static ucp_ep_h peer[RANKS];
static memory device, host;                /* each: x [tokens], outbox and inbox [ranks][tokens]; host: words first */
static uint32_t *tokens_to, *tokens_there; /* [ranks][rows] */
static size_t rows;
static volatile uint64_t *words;
static uint64_t round_number;

static size_t at_x()
{
    return WORDS * 64;
}
static size_t at_outbox(int rank)
{
    return at_x() + (1 + rank) * tokens * ROW;
}
static size_t at_inbox(int rank)
{
    return at_x() + (1 + ranks + rank) * tokens * ROW;
}
static size_t bytes_of_all()
{
    return at_inbox(ranks);
}

static void progress_until(const std::function<bool()> &done, const char *what)
{
    const double limit = now() + 30e6;
    while (!done()) {
        ucp_worker_progress(worker);
        if (now() > limit) fail(what, "does not end");
    }
}

static void meet()
{
    step++;
    __sync_synchronize();
    board->step[me] = step;
    progress_until(
        [] {
            for (int r = 0; r < ranks; r++)
                if (board->step[r] < step) return false;
            return true;
        },
        "meeting");
}

static void put(const memory &from, size_t at, const memory &to, int rank, int is_device, size_t there, size_t bytes)
{
    ucp_request_param_t param = {};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_MEMORY_TYPE | UCP_OP_ATTR_FIELD_MEMH;
    param.memory_type = &from == &device ? UCS_MEMORY_TYPE_CUDA : UCS_MEMORY_TYPE_HOST;
    param.memh = from.handle;
    void *request =
        ucp_put_nbx(peer[rank], from.base + at, bytes, board->base[is_device][rank] + there, to.key[rank], &param);
    if (UCS_PTR_IS_ERR(request)) fail("put", ucs_status_string(UCS_PTR_STATUS(request)));
    if (request != NULL) ucp_request_free(request);
}

static void flush()
{
    ucp_request_param_t param = {};
    void *request = ucp_worker_flush_nbx(worker, &param);
    if (request == NULL) return;
    if (UCS_PTR_IS_ERR(request)) fail("flush", ucs_status_string(UCS_PTR_STATUS(request)));
    progress_until([&] { return ucp_request_check_status(request) != UCS_INPROGRESS; }, "flush");
    ucp_request_free(request);
}

/* A word to each peer behind all that was put, and those of all peers. */
static void signal_all()
{
    flush();
    round_number++;
    words[8 * me] = round_number;
    for (int r = 0; r < ranks; r++)
        if (r != me) put(host, 64 * me, host, r, 0, 64 * me, 8);
    progress_until(
        [] {
            for (int r = 0; r < ranks; r++)
                if (words[8 * r] < round_number) return false;
            return true;
        },
        "words of peers");
    flush();
}

/* ---- ways ---- */

static __global__ void __launch_bounds__(1024) gather(char *to, const char *from, const uint32_t *tokens, uint32_t rows)
{
    const uint32_t lane = threadIdx.x % 32, warps = gridDim.x * blockDim.x / 32;
    for (uint32_t i = (blockIdx.x * blockDim.x + threadIdx.x) / 32; i < rows; i += warps) {
        const uint4 *row = (const uint4 *)(from + (size_t)tokens[i] * ROW);
        uint4 *out = (uint4 *)(to + (size_t)i * ROW), part[AT_ONCE];
        for (uint32_t b = 0; b < ROW / 512; b += AT_ONCE) {
#pragma unroll
            for (uint32_t c = 0; c < AT_ONCE; c++) part[c] = row[(b + c) * 32 + lane];
#pragma unroll
            for (uint32_t c = 0; c < AT_ONCE; c++) out[(b + c) * 32 + lane] = part[c];
        }
    }
}

static void by_rows(const memory &memory, int is_device)
{
    for (size_t i = 0; i < rows; i++)
        for (int k = 1; k < ranks; k++) {
            const int r = (me + k) % ranks;
            put(memory, at_x() + (size_t)tokens_to[r * rows + i] * ROW, memory, r, is_device, at_inbox(me) + i * ROW,
                ROW);
            if (i % 32 == 0) ucp_worker_progress(worker);
        }
    signal_all();
}

static void in_chunks(size_t chunk, cudaStream_t stream, std::vector<cudaEvent_t> &events)
{
    const size_t each = chunk / ROW, chunks = (rows + each - 1) / each;
    while (events.size() < chunks * ranks) {
        events.emplace_back();
        CUDA(cudaEventCreateWithFlags(&events.back(), cudaEventDisableTiming));
    }
    size_t number = 0;
    for (size_t c = 0; c < chunks; c++)
        for (int k = 1; k < ranks; k++) {
            const int r = (me + k) % ranks;
            gather<<<BLOCKS, 1024, 0, stream>>>(device.base + at_outbox(r) + c * each * ROW, device.base + at_x(),
                                                tokens_there + r * rows + c * each,
                                                (uint32_t)std::min(each, rows - c * each));
            CUDA(cudaGetLastError());
            CUDA(cudaEventRecord(events[number++], stream));
        }
    number = 0;
    for (size_t c = 0; c < chunks; c++)
        for (int k = 1; k < ranks; k++) {
            const int r = (me + k) % ranks;
            progress_until([&] { return cudaEventQuery(events[number]) == cudaSuccess; }, "gathering");
            number++;
            put(device, at_outbox(r) + c * each * ROW, device, r, 1, at_inbox(me) + c * each * ROW,
                std::min(each, rows - c * each) * ROW);
        }
    signal_all();
}

/* What was gathered before: rows that lie together, as those of a combine. */
static void whole()
{
    for (int k = 1; k < ranks; k++) {
        const int r = (me + k) % ranks;
        put(device, at_outbox(r), device, r, 1, at_inbox(me), rows * ROW);
    }
    signal_all();
}

static void by_host(cudaStream_t stream)
{
    for (int p = 0; p < PARTS; p++)
        CUDA(cudaMemcpyAsync(host.base + at_x() + tokens / PARTS * p * ROW,
                             device.base + at_x() + tokens / PARTS * p * ROW, tokens / PARTS * ROW,
                             cudaMemcpyDeviceToHost, stream));
    CUDA(cudaStreamSynchronize(stream));
    by_rows(host, 0);
    for (int k = 1; k < ranks; k++) {
        const size_t at = at_inbox((me + k) % ranks);
        CUDA(cudaMemcpyAsync(device.base + at, host.base + at, rows * ROW, cudaMemcpyHostToDevice, stream));
    }
    CUDA(cudaStreamSynchronize(stream));
}

/* ---- the run ---- */

static void check(const char *what)
{
    std::vector<char> inbox(rows * ROW);
    for (int k = 1; k < ranks; k++) {
        const int r = (me + k) % ranks;
        CUDA(cudaMemcpy(inbox.data(), device.base + at_inbox(r), rows * ROW, cudaMemcpyDeviceToHost));
        for (size_t i = 0; i < rows; i++) {
            uint32_t first, last;
            memcpy(&first, &inbox[i * ROW], 4);
            memcpy(&last, &inbox[i * ROW + ROW - 4], 4);
            /* every rank sends rank r the same tokens */
            const uint32_t expected = (uint32_t)r << 24 | tokens_to[me * rows + i];
            if (first != expected || last != expected) fail(what, "wrong rows");
        }
        CUDA(cudaMemset(device.base + at_inbox(r), 0, rows * ROW));
    }
    CUDA(cudaDeviceSynchronize());
}

static void measure(const char *what, const std::function<void()> &exchange)
{
    std::vector<double> times;
    const double limit = now() + 1.5e6;
    CUDA(cudaMemset(device.base + at_inbox(0), 0, ranks * tokens * ROW));
    CUDA(cudaDeviceSynchronize());
    meet();
    exchange();
    check(what);
    for (int i = 0; i < 30; i++) {
        meet();
        const double begin = now();
        exchange();
        board->took[me] = now() - begin;
        meet();
        double most = 0;
        for (int r = 0; r < ranks; r++) most = std::max(most, (double)board->took[r]);
        times.push_back(most);
        const int is_over = now() > limit;
        board->took[me] = is_over;
        meet();
        if (board->took[0] != 0) break;
        meet();
    }
    meet();
    std::sort(times.begin(), times.end());
    if (me == 0)
        printf("%-44s median %10.1f us, least %10.1f (%zu times), %6.1f GB/s\n", what, times[times.size() / 2],
               times[0], times.size(), (ranks - 1) * rows * ROW / times[times.size() / 2] / 1e3);
    fflush(stdout);
}

static void delay(const char *what, const memory &memory, int is_device, size_t bytes)
{
    std::vector<double> times;
    meet();
    if (me == 0)
        for (int i = 0; i < 100; i++) {
            const double begin = now();
            put(memory, at_x(), memory, 1, is_device, at_inbox(0), bytes);
            flush();
            times.push_back(now() - begin);
        }
    meet();
    std::sort(times.begin(), times.end());
    if (me == 0) printf("%-44s median %10.1f us, least %10.1f\n", what, times[50], times[0]);
    fflush(stdout);
}

static void share(memory &memory, int is_device)
{
    ucp_mem_map_params_t params = {};
    void *key;
    params.field_mask =
        UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE | UCP_MEM_MAP_PARAM_FIELD_ADDRESS;
    params.address = memory.base;
    params.length = bytes_of_all();
    params.memory_type = is_device ? UCS_MEMORY_TYPE_CUDA : UCS_MEMORY_TYPE_HOST;
    UCX(ucp_mem_map(context, &params, &memory.handle));
    UCX(ucp_rkey_pack(context, memory.handle, &key, &board->key_bytes[is_device][me]));
    if (board->key_bytes[is_device][me] > KEY) fail("key", "too long");
    memcpy(board->key[is_device][me], key, board->key_bytes[is_device][me]);
    board->base[is_device][me] = (uint64_t)memory.base;
}

static void connect()
{
    ucp_params_t params = {};
    ucp_worker_params_t worker_params = {};
    ucp_config_t *config;
    ucp_address_t *address;
    params.field_mask = UCP_PARAM_FIELD_FEATURES;
    params.features = UCP_FEATURE_RMA;
    worker_params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    worker_params.thread_mode = UCS_THREAD_MODE_SINGLE;
    UCX(ucp_config_read(NULL, NULL, &config));
    UCX(ucp_init(&params, config, &context));
    ucp_config_release(config);
    UCX(ucp_worker_create(context, &worker_params, &worker));
    share(device, 1);
    share(host, 0);
    UCX(ucp_worker_get_address(worker, &address, &board->address_bytes[me]));
    memcpy(board->address[me], address, board->address_bytes[me]);
    meet();
    for (int r = 0; r < ranks; r++) {
        if (r == me) continue;
        ucp_ep_params_t ep_params = {};
        ep_params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
        ep_params.address = (ucp_address_t *)board->address[r];
        UCX(ucp_ep_create(worker, &ep_params, &peer[r]));
        UCX(ucp_ep_rkey_unpack(peer[r], board->key[1][r], &device.key[r]));
        UCX(ucp_ep_rkey_unpack(peer[r], board->key[0][r], &host.key[r]));
    }
}

/* A token goes to a rank if one of its experts is there: the same number to each, of tokens at random. */
static void route()
{
    double missed = 1;
    for (int k = 0; k < TOPK; k++) missed *= (EXPERTS - EXPERTS / ranks - k) / (double)(EXPERTS - k);
    rows = (size_t)(tokens * (1 - missed) + 0.5);
    tokens_to = (uint32_t *)malloc(ranks * rows * 4);
    srand(7);
    for (int r = 0; r < ranks; r++)
        for (size_t t = 0, i = 0; t < tokens && i < rows; t++)
            if ((size_t)rand() % (tokens - t) < rows - i) tokens_to[r * rows + i++] = (uint32_t)t;
    CUDA(cudaMalloc(&tokens_there, ranks * rows * 4));
    CUDA(cudaMemcpy(tokens_there, tokens_to, ranks * rows * 4, cudaMemcpyHostToDevice));
    std::vector<uint32_t> x(tokens * ROW / 4);
    for (size_t t = 0; t < tokens; t++)
        for (size_t i = 0; i < ROW / 4; i++) x[t * ROW / 4 + i] = (uint32_t)me << 24 | (uint32_t)t;
    CUDA(cudaMemcpy(device.base + at_x(), x.data(), tokens * ROW, cudaMemcpyHostToDevice));
    if (me == 0)
        printf("%d ranks, %zu tokens: %zu rows of %d bytes to each peer, %.1f MB a rank\n", ranks, tokens, rows, ROW,
               (ranks - 1) * rows * ROW * 1e-6);
}

static int run()
{
    int devices;
    cudaStream_t stream;
    std::vector<cudaEvent_t> events;
    CUDA(cudaGetDeviceCount(&devices));
    CUDA(cudaSetDevice(me % devices));
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA(cudaMalloc(&device.base, bytes_of_all()));
    CUDA(cudaMallocHost(&host.base, bytes_of_all()));
    memset(host.base, 0, bytes_of_all());
    words = (volatile uint64_t *)(void *)host.base;
    route();
    connect();
    for (size_t bytes : {(size_t)8, (size_t)ROW}) {
        delay(bytes == 8 ? "8 B to a device, flush" : "a row to a device, flush", device, 1, bytes);
        delay(bytes == 8 ? "8 B to a host, flush" : "a row to a host, flush", host, 0, bytes);
    }
    measure("a put a row, device to device", [] { by_rows(device, 1); });
    measure("gathered, chunks of 1 MiB", [&] { in_chunks(1 << 20, stream, events); });
    measure("gathered, chunks of 8 MiB", [&] { in_chunks(8 << 20, stream, events); });
    measure("gathered, one chunk", [&] { in_chunks((size_t)1 << 30, stream, events); });
    measure("rows that lie together, one put", [] { whole(); });
    measure("by way of the host, a put a row", [&] { by_host(stream); });
    meet();
    fflush(stdout);
    _exit(0);
}

int main(int argc, char **argv)
{
    if (argc > 1) ranks = atoi(argv[1]);
    if (argc > 2) tokens = strtoul(argv[2], NULL, 10) / PARTS * PARTS;
    if (ranks < 2 || ranks > RANKS || tokens == 0) return fprintf(stderr, "cuda_puts [ranks [tokens]]\n"), 2;
    setvbuf(stdout, NULL, _IOLBF, 0);
    board = (shared *)mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int r = 1; r < ranks; r++)
        if (fork() == 0) {
            me = r;
            return run();
        }
    if (fork() == 0) return run();
    int status = 0, result;
    for (int r = 0; r < ranks; r++)
        if (wait(&result) > 0) status |= result;
    return status != 0;
}
