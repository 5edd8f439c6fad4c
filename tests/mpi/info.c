// Prints what the info of an open file tells, by which libraries such as PnetCDF lay files out.
//
// usage: info FILE [KEY VALUE]...
// opens it with these hints; with "later" before them, they are set when it is open
#include <mpi.h>
#include <stdio.h>
#include <string.h>

int main(int count, char **arguments) {
    MPI_File file;
    MPI_Info info, told;
    int rank = 0, keys = 0, i = 2;
    MPI_Init(&count, &arguments);
    if (count < 2) return 2;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    int later = count > 2 && strcmp(arguments[2], "later") == 0;
    MPI_Info_create(&info);
    for (i += later; i + 1 < count; i += 2) MPI_Info_set(info, arguments[i], arguments[i + 1]);
    int mode = MPI_MODE_CREATE | MPI_MODE_RDWR;
    MPI_Info first = later || count == 2 ? MPI_INFO_NULL : info;
    if (MPI_File_open(MPI_COMM_WORLD, arguments[1], mode, first, &file) != MPI_SUCCESS) return 3;
    if (later) MPI_File_set_info(file, info);
    MPI_File_get_info(file, &told);
    MPI_Info_get_nkeys(told, &keys);
    for (i = 0; i < keys && rank == 0; i++) {
        char key[MPI_MAX_INFO_KEY + 1], value[MPI_MAX_INFO_VAL + 1];
        int known;
        MPI_Info_get_nthkey(told, i, key);
        MPI_Info_get(told, key, MPI_MAX_INFO_VAL, value, &known);
        printf("%s = %s\n", key, known ? value : "");
    }
    MPI_Info_free(&told);
    MPI_Info_free(&info);
    MPI_File_close(&file);
    MPI_Finalize();
    return 0;
}
