/* Counts what a process asks MPI to move: stands between mpi4py and the library (the PMPI interface), preloaded.

   Bytes are those of the arguments: counts times the sizes of types, to and from others. A reduction left to MPI counts
   as the reduce_scatter (and all_gather) of balanced blocks, in the order of the ranks, that it amounts to. */
#include <mpi.h>

static long long calls, received, sent;

long long count_calls(void) { return calls; }
long long count_received(void) { return received; }
long long count_sent(void) { return sent; }

static int ranks(MPI_Comm comm) { int n; PMPI_Comm_size(comm, &n); return n; }
static int me(MPI_Comm comm) { int n; PMPI_Comm_rank(comm, &n); return n; }
static long long bytes(long long count, MPI_Datatype type) { int n; PMPI_Type_size(type, &n); return count * n; }
static void moved(long long in, long long out) { calls++; received += in; sent += out; }

static void reduced(long long count, MPI_Datatype type, MPI_Comm comm) {
    long long n = ranks(comm), block = count / n + (me(comm) < count % n);
    moved(bytes((n - 1) * block + count - block, type), bytes((n - 1) * block + count - block, type));
}

#define OTHERS(comm) for (int k = 0; k < ranks(comm); k++) if (k != me(comm))
#define FORWARD(name, parameters, arguments, count) int MPI_##name parameters { count; return PMPI_##name arguments; }

FORWARD(Allreduce, (const void *s, void *r, int n, MPI_Datatype t, MPI_Op o, MPI_Comm c), (s, r, n, t, o, c), reduced(n, t, c))
FORWARD(Iallreduce, (const void *s, void *r, int n, MPI_Datatype t, MPI_Op o, MPI_Comm c, MPI_Request *q),
        (s, r, n, t, o, c, q), reduced(n, t, c))
FORWARD(Reduce_scatter_block, (const void *s, void *r, int n, MPI_Datatype t, MPI_Op o, MPI_Comm c), (s, r, n, t, o, c),
        moved(bytes((long long)(ranks(c) - 1) * n, t), bytes((long long)(ranks(c) - 1) * n, t)))
FORWARD(Allgather, (const void *s, int m, MPI_Datatype u, void *r, int n, MPI_Datatype t, MPI_Comm c), (s, m, u, r, n, t, c),
        moved(bytes((long long)(ranks(c) - 1) * n, t), bytes((long long)(ranks(c) - 1) * n, t)))
FORWARD(Alltoall, (const void *s, int m, MPI_Datatype u, void *r, int n, MPI_Datatype t, MPI_Comm c), (s, m, u, r, n, t, c),
        moved(bytes((long long)(ranks(c) - 1) * n, t), bytes((long long)(ranks(c) - 1) * m, u)))
FORWARD(Bcast, (void *b, int n, MPI_Datatype t, int root, MPI_Comm c), (b, n, t, root, c),
        moved(me(c) == root ? 0 : bytes(n, t), me(c) == root ? bytes((long long)(ranks(c) - 1) * n, t) : 0))
FORWARD(Send, (const void *b, int n, MPI_Datatype t, int p, int g, MPI_Comm c), (b, n, t, p, g, c), moved(0, bytes(n, t)))
FORWARD(Isend, (const void *b, int n, MPI_Datatype t, int p, int g, MPI_Comm c, MPI_Request *q), (b, n, t, p, g, c, q),
        moved(0, bytes(n, t)))
FORWARD(Irecv, (void *b, int n, MPI_Datatype t, int p, int g, MPI_Comm c, MPI_Request *q), (b, n, t, p, g, c, q),
        moved(bytes(n, t), 0))
FORWARD(Barrier, (MPI_Comm c), (c), moved(0, 0))
FORWARD(Ibarrier, (MPI_Comm c, MPI_Request *q), (c, q), moved(0, 0))
FORWARD(Iprobe, (int p, int g, MPI_Comm c, int *f, MPI_Status *s), (p, g, c, f, s), moved(0, 0))
FORWARD(Comm_create_group, (MPI_Comm c, MPI_Group g, int t, MPI_Comm *n), (c, g, t, n), moved(0, 0))
FORWARD(Comm_split_type, (MPI_Comm c, int t, int k, MPI_Info i, MPI_Comm *n), (c, t, k, i, n), moved(0, 0))
FORWARD(Comm_split, (MPI_Comm c, int o, int k, MPI_Comm *n), (c, o, k, n), moved(0, 0))
FORWARD(Comm_dup, (MPI_Comm c, MPI_Comm *n), (c, n), moved(0, 0))
FORWARD(Win_allocate_shared, (MPI_Aint n, int u, MPI_Info i, MPI_Comm c, void *b, MPI_Win *w), (n, u, i, c, b, w), moved(0, 0))

int MPI_Recv(void *b, int n, MPI_Datatype t, int p, int g, MPI_Comm c, MPI_Status *s) {
    MPI_Status there;
    int code = PMPI_Recv(b, n, t, p, g, c, &there), got;
    PMPI_Get_count(&there, MPI_BYTE, &got);
    moved(got, 0);
    if (s != MPI_STATUS_IGNORE) *s = there;
    return code;
}

int MPI_Mrecv(void *b, int n, MPI_Datatype t, MPI_Message *m, MPI_Status *s) {
    MPI_Status there;
    int code = PMPI_Mrecv(b, n, t, m, &there), got;
    PMPI_Get_count(&there, MPI_BYTE, &got);
    moved(got, 0);
    if (s != MPI_STATUS_IGNORE) *s = there;
    return code;
}

int MPI_Reduce_scatter(const void *s, void *r, const int n[], MPI_Datatype t, MPI_Op o, MPI_Comm c) {
    long long out = 0;
    OTHERS(c) out += n[k];
    moved(bytes((long long)(ranks(c) - 1) * n[me(c)], t), bytes(out, t));
    return PMPI_Reduce_scatter(s, r, n, t, o, c);
}

int MPI_Allgatherv(const void *s, int m, MPI_Datatype u, void *r, const int n[], const int d[], MPI_Datatype t, MPI_Comm c) {
    long long in = 0;
    OTHERS(c) in += n[k];
    moved(bytes(in, t), bytes((long long)(ranks(c) - 1) * n[me(c)], t));
    return PMPI_Allgatherv(s, m, u, r, n, d, t, c);
}

int MPI_Alltoallv(const void *s, const int m[], const int e[], MPI_Datatype u, void *r, const int n[], const int d[],
                  MPI_Datatype t, MPI_Comm c) {
    long long in = 0, out = 0;
    OTHERS(c) in += n[k], out += m[k];
    moved(bytes(in, t), bytes(out, u));
    return PMPI_Alltoallv(s, m, e, u, r, n, d, t, c);
}

int MPI_Alltoallw(const void *s, const int m[], const int e[], const MPI_Datatype u[], void *r, const int n[], const int d[],
                  const MPI_Datatype t[], MPI_Comm c) {
    long long in = 0, out = 0;
    OTHERS(c) in += bytes(n[k], t[k]), out += bytes(m[k], u[k]);
    moved(in, out);
    return PMPI_Alltoallw(s, m, e, u, r, n, d, t, c);
}
