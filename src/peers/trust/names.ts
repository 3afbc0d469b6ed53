import { isClusterName, isWorkerId, type WorkerId } from "../../core/index.ts";

const PEER_URI = /^spiffe:\/\/([^/]*)\/hearth\/([^/]*)$/;

export interface PeerName {
  readonly cluster: string;
  readonly worker: WorkerId;
}

/** The name in a host's certificate. */
export function peerUri({ cluster, worker }: PeerName): string {
  return `${clusterUri(cluster)}/hearth/${worker}`;
}

/** The name in the certificate of a cluster's authority. */
export function clusterUri(cluster: string): string {
  return `spiffe://${cluster}`;
}

/** Null: no name of a host, in exactly the one form there is. */
export function parsePeerUri(uri: string): PeerName | null {
  const [, cluster, worker] = PEER_URI.exec(uri) ?? [];
  if (cluster === undefined || worker === undefined) return null;
  return isClusterName(cluster) && isWorkerId(worker) ? { cluster, worker } : null;
}
