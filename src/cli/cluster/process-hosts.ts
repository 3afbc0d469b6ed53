import { type PrivateAgent, PrivateBroker, PrivateRouter } from "../../workload/replay/index.ts";
import { openOwnAgent } from "../run-replay.ts";
import { type ClusterHosts, EVENTS_SETTINGS, type HostsOptions, routerSettings } from "./hosts.ts";

/** Each agent and the router in a process of its own, over a nats-server of their own. */
export async function openProcessHosts(
  natsServer: string,
  options: HostsOptions,
): Promise<ClusterHosts> {
  const { workers, ramBlocks, blockBytes, blockTokens, signal } = options;
  await using opening = new AsyncDisposableStack();
  const broker = opening.use(await PrivateBroker.start(natsServer, signal));
  const nats = { url: JSON.stringify(broker.url) };
  const agents = new Map<string, PrivateAgent>();
  const opened = Array.from({ length: workers }, async (_, at) => {
    const worker = `w-${at + 1}`;
    const settings = { node: { id: JSON.stringify(worker) }, nats, events: EVENTS_SETTINGS };
    const own = { ramBlocks, ssdBlocks: 0, blockBytes, policy: "hearth", settings };
    agents.set(worker, opening.use(await openOwnAgent(own, signal)));
  });
  // All of them, so that those that started are stopped where another did not.
  const failed = (await Promise.allSettled(opened)).find(({ status }) => status === "rejected");
  if (failed?.status === "rejected") throw failed.reason;
  const all = opening.move();
  return {
    over: "nats",
    sockets: new Map([...agents].map(([worker, { socketPath }]) => [worker, socketPath])),
    async flush() {
      await Promise.all([...agents.values()].map((agent) => agent.flush()));
    },
    openRouter: (mode) =>
      PrivateRouter.start({
        settings: { router: routerSettings(mode, blockTokens), nats },
        signal,
      }),
    [Symbol.asyncDispose]: () => all.disposeAsync(),
  };
}
