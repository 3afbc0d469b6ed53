import { PrivateBroker } from "../../workload/replay/index.ts";
import type { ClusterHosts, HostsOptions } from "./hosts.ts";
import { openLocalHosts } from "./local-hosts.ts";
import { openProcessHosts } from "./process-hosts.ts";

export { type ClusterHosts, type ClusterRouter, dispatcherOf } from "./hosts.ts";

/** With a nats-server where this host has one, else all in this process. */
export function openHosts(options: HostsOptions, isLocal: boolean): Promise<ClusterHosts> {
  const natsServer = isLocal ? null : PrivateBroker.find();
  return natsServer === null ? openLocalHosts(options) : openProcessHosts(natsServer, options);
}
