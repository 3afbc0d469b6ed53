import type { RdmaPort, RdmaState } from "../native/index.ts";
import { counted, type Finding, wrongPath } from "./finding.ts";

type Named = Pick<RdmaPort, "device" | "number" | "state" | "linkLayer" | "speed">;

/** What opening the verbs came to; `library` is the path that was asked for, if one was. */
export function rdmaFinding(
  { state, errno }: { readonly state: RdmaState; readonly errno: number },
  ports: readonly Named[],
  library: string | null = null,
): Finding {
  switch (state) {
    case "ready":
      return { kind: "usable", text: portsText(ports), fix: null };
    case "no_library":
      if (library !== null) return wrongPath("rdma.library", library);
      return {
        kind: "absent",
        text: "no libibverbs.so.1: no RDMA here",
        fix: "with an RDMA NIC, install libibverbs1 and ibverbs-providers (rdma-core)",
      };
    case "no_device":
      return {
        kind: "absent",
        text: "libibverbs.so.1 is there, and it shows no RDMA device",
        fix: "with an RDMA NIC, load its module and ib_uverbs, and pass in /dev/infiniband",
      };
    case "memlock":
      return {
        kind: "broken",
        text: "RDMA devices are here, and the memory that may be locked is too little for them",
        fix: "LimitMEMLOCK=infinity in the unit, ulimit -l unlimited, or --ulimit memlock=-1",
      };
    case "not_permitted":
      return {
        kind: "broken",
        text: `RDMA devices are here, and may not be opened (errno ${errno})`,
        fix: "let the agent's user open /dev/infiniband/uverbs* (DeviceAllow=, group rdma)",
      };
    case "too_old":
      return {
        kind: "broken",
        text: "libibverbs.so.1 lacks calls that are needed",
        fix: "update rdma-core to release 32 or later",
      };
    case "failed":
      return {
        kind: "broken",
        text: `RDMA devices are here, and cannot be opened (errno ${errno})`,
        fix: "see ibv_devinfo and dmesg",
      };
    default:
      return state satisfies never;
  }
}

/** `mlx5_0/1`. */
export function portName({ device, number }: Pick<RdmaPort, "device" | "number">): string {
  return `${device}/${number}`;
}

/** One port, with what there is to do about it where it is not active. */
export function portFinding(port: Named): Finding {
  const layer = port.linkLayer === "infiniband" ? "InfiniBand" : "Ethernet";
  const speed = port.speed === 0 ? "" : ` ${Math.round(port.speed / 1000)} Gb/s`;
  const name = `${portName(port)} ${layer}${speed}`;
  switch (port.state) {
    case "active":
      return { kind: "usable", text: name, fix: null };
    case "down":
      return {
        kind: "broken",
        text: `${name} is down`,
        fix: "check cable and switch port; ip link set DEVICE up, or a subnet manager",
      };
    case "no_address":
      return {
        kind: "broken",
        text: `${name} has no address to be used by`,
        fix: "give its network device an IP address, or name an entry in rdma.gid_index",
      };
    case "fatal":
      return {
        kind: "broken",
        text: `${name} belongs to a device that failed`,
        fix: "see dmesg, reset or replace the device, and restart the agent",
      };
    default:
      return port.state satisfies never;
  }
}

function portsText(ports: readonly Named[]): string {
  const active = ports.filter(({ state }) => state === "active").length;
  const names = ports.map((port) => portFinding(port).text).join(", ");
  return `${counted(ports.length, "RDMA port")}, ${active} active: ${names}`;
}
