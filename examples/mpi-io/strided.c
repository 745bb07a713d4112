/*
 * One file whose blocks belong to the ranks in turn, written and read by MPI-IO with a view; all that is read is compared.
 *
 *   mpicc -O1 -o strided examples/mpi-io/strided.c
 *   mpiexec -n 4 ./strided FILE BLOCK-BYTES BLOCKS together|alone [atomic]
 *
 * `together` are collective calls (MPI_File_write_all), `alone` independent ones (MPI_File_write), of which each has all blocks of
 * a rank. The ranks read what others have written, after MPI_File_sync, a barrier and MPI_File_sync, or in atomic mode after a barrier.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(int code, const char *what)
{
    if (code != MPI_SUCCESS) {
        char text[MPI_MAX_ERROR_STRING];
        int length;
        MPI_Error_string(code, text, &length);
        fprintf(stderr, "%s: %s\n", what, text);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

#define CHECK(call) check((call), #call)

static unsigned char content(int rank, long at)
{
    return (unsigned char) (at * 31 + at / 251 + rank * 89 + 1);
}

static void view(MPI_File file, int owner, int ranks, int block, int blocks)
{
    MPI_Datatype turns;
    CHECK(MPI_Type_vector(blocks, block, block * ranks, MPI_BYTE, &turns));
    CHECK(MPI_Type_commit(&turns));
    CHECK(MPI_File_set_view(file, (MPI_Offset) owner * block, MPI_BYTE, turns, "native", MPI_INFO_NULL));
    CHECK(MPI_Type_free(&turns));
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc < 5) {
        fprintf(stderr, "usage: strided FILE BLOCK-BYTES BLOCKS together|alone [atomic]\n");
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    int block = atoi(argv[2]), blocks = atoi(argv[3]), together = strcmp(argv[4], "together") == 0;
    int atomic = argc > 5 && strcmp(argv[5], "atomic") == 0;
    long bytes = (long) block * blocks, wrong = 0, all_wrong;
    unsigned char *data = malloc(bytes);
    for (long at = 0; at < bytes; at++)
        data[at] = content(rank, at);

    MPI_File file;
    CHECK(MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file));
    if (atomic)
        CHECK(MPI_File_set_atomicity(file, 1));
    view(file, rank, ranks, block, blocks);
    MPI_Barrier(MPI_COMM_WORLD);
    double began = MPI_Wtime();
    CHECK(together ? MPI_File_write_all(file, data, bytes, MPI_BYTE, MPI_STATUS_IGNORE)
          : MPI_File_write(file, data, bytes, MPI_BYTE, MPI_STATUS_IGNORE));
    MPI_Barrier(MPI_COMM_WORLD);
    double written = MPI_Wtime();
    if (!atomic) {
        CHECK(MPI_File_sync(file));
        MPI_Barrier(MPI_COMM_WORLD);
        CHECK(MPI_File_sync(file));
    }
    double synced = MPI_Wtime();

    int owner = (rank + 1) % ranks;
    view(file, owner, ranks, block, blocks);
    CHECK(together ? MPI_File_read_all(file, data, bytes, MPI_BYTE, MPI_STATUS_IGNORE)
          : MPI_File_read(file, data, bytes, MPI_BYTE, MPI_STATUS_IGNORE));
    for (long at = 0; at < bytes; at++)
        wrong += data[at] != content(owner, at);
    MPI_Allreduce(&wrong, &all_wrong, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    CHECK(MPI_File_close(&file));
    if (rank == 0)
        printf("%s: %ld bytes wrong; written in %.3f s, synced in %.3f s\n", all_wrong ? "Errors" : "No Errors", all_wrong,
               written - began, synced - written);
    free(data);
    MPI_Finalize();
    return all_wrong != 0;
}
