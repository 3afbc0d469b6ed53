import type { Fleet } from "./fleet.ts";
import type { RouterReport, WorkerReport } from "./messages.ts";

/** What is not as it must be, in words; empty: all is. */
export async function differences(fleet: Fleet): Promise<string[]> {
  const [workers, routers] = await Promise.all([
    Promise.all(fleet.workers.map((child) => child.report(false))),
    Promise.all(fleet.routers.map((child) => child.report(false))),
  ]);
  const found: string[] = [];
  const own = new Map<string, number>();
  for (const report of routers) {
    for (const [worker, count] of Object.entries(report?.own ?? {})) {
      own.set(worker, (own.get(worker) ?? 0) + count);
    }
  }
  for (const [at, report] of routers.entries()) {
    const name = fleet.routers[at]!.name;
    if (report === null) found.push(`${name} does not answer`);
    else found.push(...ofRouter(name, report, fleet, workers, own));
  }
  found.push(...ofLoads(routers));
  return found;
}

function ofRouter(
  name: string,
  report: RouterReport,
  fleet: Fleet,
  workers: readonly (WorkerReport | null)[],
  own: ReadonlyMap<string, number>,
): string[] {
  const found: string[] = [];
  if (report.targets.length !== fleet.workers.length) {
    found.push(`${name} knows ${report.targets.length} workers`);
  }
  if (report.replicas !== fleet.routers.length - 1) {
    found.push(`${name} sees ${report.replicas} other routers`);
  }
  for (const [at, { name: worker }] of fleet.workers.entries()) {
    const target = report.targets.find((one) => one.worker === worker);
    const real = workers[at];
    if (target === undefined || real === null || real === undefined) {
      found.push(`${name} or ${worker} does not say what it has`);
      continue;
    }
    if (!target.isKnown) found.push(`${name} does not know all of ${worker}`);
    if (target.digest !== real.digest) found.push(`${name} is wrong about ${worker}`);
    const counted = report.loads[worker]?.[0] ?? 0;
    const live = own.get(worker) ?? 0;
    if (counted !== live) found.push(`${name} counts ${counted} of ${live} requests at ${worker}`);
  }
  return found;
}

function ofLoads(routers: readonly (RouterReport | null)[]): string[] {
  const said = routers.map((report) =>
    Object.entries(report?.loads ?? {})
      .sort(([a], [b]) => a.localeCompare(b))
      .map(([worker, load]) => `${worker} ${load.join("/")}`)
      .join(", "),
  );
  return said.some((one) => one !== said[0]) ? [`loads differ: ${said.join(" | ")}`] : [];
}
