import { NEAR } from "./places.ts";

/** The interface that carries RDMA between the guests. */
export const RAIL = "eth0";

/** Runs a line of shell with the guest's own programs; what it says, or an error with it. */
export async function shell(line: string): Promise<string> {
  // busybox would run ip and tc of its own.
  const command = ["/usr/sbin/chroot", "/run/bed", "/bin/busybox", "sh", "-c", line];
  const child = Bun.spawn(command, { stdin: "ignore", stdout: "pipe", stderr: "pipe" });
  const said = await Promise.all([new Response(child.stdout).text(), errorsOf(child.stderr)]);
  if ((await child.exited) !== 0) throw new Error(`${line}: ${said.join("")}`);
  return said[0];
}

function errorsOf(stream: ReadableStream<Uint8Array>): Promise<string> {
  return new Response(stream).text();
}

/** So many packets in a hundred are lost on the way out of this guest. */
export async function lose(percent: number): Promise<void> {
  await shell("/sbin/tc qdisc del dev eth0 root 2> /dev/null || true");
  if (percent > 0) await shell(`/sbin/tc qdisc add dev ${RAIL} root netem loss ${percent}%`);
}

export async function setRail(state: "up" | "down", address = NEAR.rail): Promise<void> {
  await shell(`/bin/ip link set ${RAIL} ${state}`);
  if (state === "down") return;
  // With the link went the route, and in some kernels the GID.
  await shell(`/bin/ip address replace ${address}/24 dev ${RAIL}`);
}
