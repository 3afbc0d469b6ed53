import type { WorkerId } from "../../core/index.ts";
import { ACTIVE_SEQUENCES_TOPIC } from "../../events/index.ts";
import type { RouterId } from "./router-id.ts";

/** Where the routers of a cluster speak to each other. */
export interface ReplicaSubjects {
  readonly state: string;
  /** Dynamo's topic, with its events. */
  readonly load: string;
  readonly output: string;
  readonly requestsOf: (router: RouterId) => string;
  readonly pictureOf: (router: RouterId, worker: WorkerId | "*", rank: number | "*") => string;
}

export function replicaSubjects(cluster: string): ReplicaSubjects {
  const name = cluster.replaceAll(".", "_");
  const [said, asked] = [`kv-routers-${name}`, `kv-routers-ask-${name}`];
  return {
    state: `${said}.state`,
    load: `${said}.${ACTIVE_SEQUENCES_TOPIC}`,
    output: `${said}.output`,
    requestsOf: (router) => `${asked}.${router}.requests`,
    pictureOf: (router, worker, rank) => `${asked}.${router}.picture.${worker}.${rank}`,
  };
}
