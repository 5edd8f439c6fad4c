// Writes a file by PnetCDF, which lays it out as hints and the file's info say.
//
// usage: layout FILE
#include <mpi.h>
#include <pnetcdf.h>
#include <stdio.h>

// Large enough that it would align them to stripes.
enum { COLUMNS = 600000, VARIABLES = 3 };

static int wrong;

static void must(int result, const char *what) {
    if (result == NC_NOERR) return;
    printf("%s: %s\n", what, ncmpi_strerror(result));
    wrong = 1;
}

int main(int count, char **arguments) {
    int rank, ranks, file, dimensions[2], variables[VARIABLES];
    static int values[COLUMNS];
    char name[] = "a";
    MPI_Init(&count, &arguments);
    if (count < 2) return 2;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    must(ncmpi_create(MPI_COMM_WORLD, arguments[1], NC_CLOBBER, MPI_INFO_NULL, &file), "create");
    must(ncmpi_def_dim(file, "rows", ranks, &dimensions[0]), "rows");
    must(ncmpi_def_dim(file, "columns", COLUMNS, &dimensions[1]), "columns");
    for (int i = 0; i < VARIABLES; i++, name[0]++) {
        must(ncmpi_def_var(file, name, NC_INT, 2, dimensions, &variables[i]), name);
    }
    must(ncmpi_enddef(file), "enddef");
    for (int i = 0; i < COLUMNS; i++) values[i] = rank * COLUMNS + i;
    MPI_Offset from[2] = {rank, 0}, counts[2] = {1, COLUMNS};
    for (int i = 0; i < VARIABLES; i++) {
        must(ncmpi_put_vara_int_all(file, variables[i], from, counts, values), "put");
    }
    must(ncmpi_close(file), "close");
    MPI_Finalize();
    return wrong;
}
