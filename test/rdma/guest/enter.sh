#!/bin/sh
# Inside the host's tree: what a program of the checkout finds around it. The verbs' library is the
# guest's own and drives a real device of the kernel; it is no stand-in.
verbs=/run/bed/usr/lib/x86_64-linux-gnu
mkdir -p /run/verbs
for file in "$verbs"/libibverbs.so.1 "$verbs"/libnl-*.so.200 /run/bed/lib/*/libnl-*.so.200; do
  if [ -e "$file" ]; then ln -sf "$file" /run/verbs/; fi
done
PATH=/usr/bin:/bin:/usr/sbin:/sbin
. /run/out/paths.sh
export PATH HOME=/run/tmp TMPDIR=/run/tmp LANG=C.UTF-8 NO_COLOR=1
export HEARTH_TEST_NATIVE=ready HEARTH_TEST_PATIENCE=3
export HEARTH_TEST_VERBS=/run/verbs/libibverbs.so.1
export LD_LIBRARY_PATH=/run/verbs
export RDMAV_DRIVERS="$verbs/libibverbs/librxe"
ulimit -l unlimited
exec "$@"
