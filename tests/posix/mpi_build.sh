#!/usr/bin/env bash
# Builds the tests of MPI-IO in MPICH's source, and the example: mpi_build.sh SOURCE.tar.xz FOLDER; then FOLDER/mpich and FOLDER/openmpi have the programs.
#
# Only C and Fortran files are taken: what a `configure` would put into them is known for Linux on 64 bits. What a compiler refuses is not there in
# the end; the suites know which ones these are (exclusions.toml).
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
archive=$1 into=$2
source=$into/unpacked
mkdir -p "$source"
tar -xf "$archive" -C "$source" --strip-components=1 --wildcards '*/src/mpi/romio/test/*' '*/test/mpi/io/*' '*/test/mpi/include/*' '*/test/mpi/util/*'

(cd "$source/src/mpi/romio/test" && for file in *.c.in *.f.in; do
    sed -e 's/@LL@/lld/g' -e 's/@F77MPIOINC@//' -e 's/@FORTRAN_MPI_OFFSET@/integer*8/' -e 's/@F77IARGC@/iargc()/' \
        -e 's/@F77GETARG@/call getarg(i, str)/' "$file" >"${file%.in}"
done)
# As it comes, coll_perf writes 14 GB and each rank holds 3.5 GB of it: two ways side by side do not fit into 24 GB of memory. Its array is cut to 216 MiB.
perf=$source/src/mpi/romio/test/coll_perf.c
sed -i -E 's/(array_of_gsizes\[[0-2]\] *= *128) *\* *(17|9|11);/\1 * 3;/' "$perf"
(($(grep -cE 'array_of_gsizes\[[0-2]\] *= *128 \* 3;' "$perf") == 3)) || { printf 'mpi_build: coll_perf.c is not as expected\n' >&2; exit 1; }
include=$source/test/mpi/include
for name in STDIO_H STDLIB_H STRING_H STDARG_H UNISTD_H SYS_TYPES_H SYS_TIME_H SYS_STAT_H STDINT_H INTTYPES_H PTHREAD_H LONG_LONG LONG_DOUBLE; do
    printf '#define HAVE_%s 1\n' "$name"
done >"$include/mpitestconf.h"
printf '#define THREAD_PACKAGE_NAME THREAD_PACKAGE_POSIX\n' >>"$include/mpitestconf.h"

for library in mpich openmpi; do
    mkdir -p "$into/$library" "$into/objects-$library"
    "mpicc.$library" -O1 -Wall -Werror -o "$into/$library/strided" "$here/examples/mpi-io/strided.c"
    helpers=()
    for helper in mtest mtest_common mtest_thread; do
        helpers+=("$into/objects-$library/$helper.o")
        "mpicc.$library" -O1 -w -I"$include" -c "$source/test/mpi/util/$helper.c" -o "${helpers[-1]}"
    done
    for file in "$source"/src/mpi/romio/test/*.c; do
        "mpicc.$library" -O1 -w -o "$into/$library/$(basename "$file" .c)" "$file" 2>>"$into/refused.txt" || true
    done
    for file in "$source"/src/mpi/romio/test/*.f; do
        "mpif77.$library" -O1 -w -fallow-argument-mismatch -o "$into/$library/$(basename "$file" .f)" "$file" 2>>"$into/refused.txt" || true
    done
    for file in "$source"/test/mpi/io/*.c; do
        name=$(basename "$file" .c)
        # Both folders have one of this name.
        [[ ! -e $source/src/mpi/romio/test/$name.c ]] || name=io_$name
        "mpicc.$library" -O1 -w -I"$include" -o "$into/$library/$name" "$file" "${helpers[@]}" 2>>"$into/refused.txt" || true
    done
done
rm -r "$source" "$into"/objects-*
