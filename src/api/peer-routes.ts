import { Elysia } from "elysia";
import { readBlockName } from "../core/index.ts";
import { peersReport, pullsQuery, pullsReport } from "./peer-report.ts";
import type { PeerServices } from "./services.ts";
import { refuseName } from "./tree-routes.ts";

/** Other hosts, and what came from them. */
export function peerRoutes(peers: PeerServices) {
  return new Elysia()
    .get("/v1/peers", () => peers.report(), {
      response: peersReport,
      detail: { summary: "Other hosts that blocks are pulled from, and how it goes" },
    })
    .get(
      "/v1/pulls",
      ({ query: { key, limit = 100 } }) => {
        if (key === undefined) return peers.pulls(null, limit);
        const name = readBlockName(key);
        return name === null ? refuseName("key", key) : peers.pulls(name, limit);
      },
      {
        query: pullsQuery,
        response: pullsReport,
        detail: { summary: "What happened to blocks that were pulled, step by step" },
      },
    );
}
