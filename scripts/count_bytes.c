/* Count the calls of a process to MPI, and the bytes that it asks MPI to send and receive.

   The compiled library is preloaded, so that mpi4py calls it instead of MPI's library. It counts, and calls MPI's library
   by the PMPI interface. Bytes follow from the arguments: counts times the sizes of types, to and from other ranks. An
   all_reduce counts as a reduce_scatter and an all_gather of balanced blocks in the order of the ranks.

   The file includes itself for the functions of MPI 4 with large counts, which differ in their types and names only. */
#ifndef NAME
#include <mpi.h>

static long long calls, received, sent;

long long count_calls(void) { return calls; }
long long count_received(void) { return received; }
long long count_sent(void) { return sent; }

static int ranks(MPI_Comm comm) { int n; PMPI_Comm_size(comm, &n); return n; }
static int me(MPI_Comm comm) { int n; PMPI_Comm_rank(comm, &n); return n; }
static long long bytes(long long count, MPI_Datatype type) { int n; PMPI_Type_size(type, &n); return count * n; }
static void moved(long long in, long long out) { calls++; received += in; sent += out; }

/* An all_reduce: (n - 1) own blocks in the reduce_scatter, and the blocks of the other ranks in the all_gather. */
static void reduced(long long count, MPI_Datatype type, MPI_Comm comm) {
    long long n = ranks(comm), block = count / n + (me(comm) < count % n);
    moved(bytes((n - 1) * block + count - block, type), bytes((n - 1) * block + count - block, type));
}

/* A received message: its size is known from its status only. */
static void arrived(MPI_Status *there, MPI_Status *wanted) {
    int got;
    PMPI_Get_count(there, MPI_BYTE, &got);
    moved(got, 0);
    if (wanted != MPI_STATUS_IGNORE) *wanted = *there;
}

#define OTHERS(comm) for (int k = 0; k < ranks(comm); k++) if (k != me(comm))
#define CALL(name, parameters, arguments, count) int MPI_##name parameters { count; return PMPI_##name arguments; }

CALL(Barrier, (MPI_Comm c), (c), moved(0, 0))
CALL(Ibarrier, (MPI_Comm c, MPI_Request *q), (c, q), moved(0, 0))
CALL(Iprobe, (int p, int g, MPI_Comm c, int *f, MPI_Status *s), (p, g, c, f, s), moved(0, 0))
CALL(Comm_create_group, (MPI_Comm c, MPI_Group g, int t, MPI_Comm *n), (c, g, t, n), moved(0, 0))
CALL(Comm_split_type, (MPI_Comm c, int t, int k, MPI_Info i, MPI_Comm *n), (c, t, k, i, n), moved(0, 0))
CALL(Comm_split, (MPI_Comm c, int o, int k, MPI_Comm *n), (c, o, k, n), moved(0, 0))
CALL(Comm_dup, (MPI_Comm c, MPI_Comm *n), (c, n), moved(0, 0))

#define NAME(function) function
#define COUNT int
#define DISPLACEMENT int
#include "count_bytes.c"
#if MPI_VERSION >= 4
#undef NAME
#undef COUNT
#undef DISPLACEMENT
#define NAME(function) function##_c
#define COUNT MPI_Count
#define DISPLACEMENT MPI_Aint
#include "count_bytes.c"
#endif
#else

#undef FORWARD
#define FORWARD(name, parameters, arguments, count) int NAME(MPI_##name) parameters { count; return NAME(PMPI_##name) arguments; }

FORWARD(Allreduce, (const void *s, void *r, COUNT n, MPI_Datatype t, MPI_Op o, MPI_Comm c), (s, r, n, t, o, c), reduced(n, t, c))
FORWARD(Iallreduce, (const void *s, void *r, COUNT n, MPI_Datatype t, MPI_Op o, MPI_Comm c, MPI_Request *q),
        (s, r, n, t, o, c, q), reduced(n, t, c))
FORWARD(Iallgather, (const void *s, COUNT m, MPI_Datatype u, void *r, COUNT n, MPI_Datatype t, MPI_Comm c, MPI_Request *q),
        (s, m, u, r, n, t, c, q), moved(bytes((long long)(ranks(c) - 1) * n, t), bytes((long long)(ranks(c) - 1) * n, t)))
FORWARD(Reduce_scatter_block, (const void *s, void *r, COUNT n, MPI_Datatype t, MPI_Op o, MPI_Comm c), (s, r, n, t, o, c),
        moved(bytes((long long)(ranks(c) - 1) * n, t), bytes((long long)(ranks(c) - 1) * n, t)))
FORWARD(Allgather, (const void *s, COUNT m, MPI_Datatype u, void *r, COUNT n, MPI_Datatype t, MPI_Comm c), (s, m, u, r, n, t, c),
        moved(bytes((long long)(ranks(c) - 1) * n, t), bytes((long long)(ranks(c) - 1) * n, t)))
FORWARD(Alltoall, (const void *s, COUNT m, MPI_Datatype u, void *r, COUNT n, MPI_Datatype t, MPI_Comm c), (s, m, u, r, n, t, c),
        moved(bytes((long long)(ranks(c) - 1) * n, t), bytes((long long)(ranks(c) - 1) * m, u)))
FORWARD(Bcast, (void *b, COUNT n, MPI_Datatype t, int root, MPI_Comm c), (b, n, t, root, c),
        moved(me(c) == root ? 0 : bytes(n, t), me(c) == root ? bytes((long long)(ranks(c) - 1) * n, t) : 0))
FORWARD(Send, (const void *b, COUNT n, MPI_Datatype t, int p, int g, MPI_Comm c), (b, n, t, p, g, c), moved(0, bytes(n, t)))
FORWARD(Isend, (const void *b, COUNT n, MPI_Datatype t, int p, int g, MPI_Comm c, MPI_Request *q), (b, n, t, p, g, c, q),
        moved(0, bytes(n, t)))
FORWARD(Irecv, (void *b, COUNT n, MPI_Datatype t, int p, int g, MPI_Comm c, MPI_Request *q), (b, n, t, p, g, c, q),
        moved(bytes(n, t), 0))
FORWARD(Win_allocate_shared, (MPI_Aint n, DISPLACEMENT u, MPI_Info i, MPI_Comm c, void *b, MPI_Win *w), (n, u, i, c, b, w), moved(0, 0))

int NAME(MPI_Recv)(void *b, COUNT n, MPI_Datatype t, int p, int g, MPI_Comm c, MPI_Status *s) {
    MPI_Status there;
    int code = NAME(PMPI_Recv)(b, n, t, p, g, c, &there);
    arrived(&there, s);
    return code;
}

int NAME(MPI_Mrecv)(void *b, COUNT n, MPI_Datatype t, MPI_Message *m, MPI_Status *s) {
    MPI_Status there;
    int code = NAME(PMPI_Mrecv)(b, n, t, m, &there);
    arrived(&there, s);
    return code;
}

int NAME(MPI_Reduce_scatter)(const void *s, void *r, const COUNT n[], MPI_Datatype t, MPI_Op o, MPI_Comm c) {
    long long out = 0;
    OTHERS(c) out += n[k];
    moved(bytes((long long)(ranks(c) - 1) * n[me(c)], t), bytes(out, t));
    return NAME(PMPI_Reduce_scatter)(s, r, n, t, o, c);
}

int NAME(MPI_Allgatherv)(const void *s, COUNT m, MPI_Datatype u, void *r, const COUNT n[], const DISPLACEMENT d[], MPI_Datatype t, MPI_Comm c) {
    long long in = 0;
    OTHERS(c) in += n[k];
    moved(bytes(in, t), bytes((long long)(ranks(c) - 1) * n[me(c)], t));
    return NAME(PMPI_Allgatherv)(s, m, u, r, n, d, t, c);
}

int NAME(MPI_Iallgatherv)(const void *s, COUNT m, MPI_Datatype u, void *r, const COUNT n[], const DISPLACEMENT d[], MPI_Datatype t, MPI_Comm c,
                          MPI_Request *q) {
    long long in = 0;
    OTHERS(c) in += n[k];
    moved(bytes(in, t), bytes((long long)(ranks(c) - 1) * n[me(c)], t));
    return NAME(PMPI_Iallgatherv)(s, m, u, r, n, d, t, c, q);
}

int NAME(MPI_Alltoallv)(const void *s, const COUNT m[], const DISPLACEMENT e[], MPI_Datatype u, void *r, const COUNT n[], const DISPLACEMENT d[],
                  MPI_Datatype t, MPI_Comm c) {
    long long in = 0, out = 0;
    OTHERS(c) in += n[k], out += m[k];
    moved(bytes(in, t), bytes(out, u));
    return NAME(PMPI_Alltoallv)(s, m, e, u, r, n, d, t, c);
}

int NAME(MPI_Ialltoallv)(const void *s, const COUNT m[], const DISPLACEMENT e[], MPI_Datatype u, void *r, const COUNT n[],
                         const DISPLACEMENT d[], MPI_Datatype t, MPI_Comm c, MPI_Request *q) {
    long long in = 0, out = 0;
    OTHERS(c) in += n[k], out += m[k];
    moved(bytes(in, t), bytes(out, u));
    return NAME(PMPI_Ialltoallv)(s, m, e, u, r, n, d, t, c, q);
}

int NAME(MPI_Alltoallw)(const void *s, const COUNT m[], const DISPLACEMENT e[], const MPI_Datatype u[], void *r, const COUNT n[], const DISPLACEMENT d[],
                  const MPI_Datatype t[], MPI_Comm c) {
    long long in = 0, out = 0;
    OTHERS(c) in += bytes(n[k], t[k]), out += bytes(m[k], u[k]);
    moved(in, out);
    return NAME(PMPI_Alltoallw)(s, m, e, u, r, n, d, t, c);
}
#endif
