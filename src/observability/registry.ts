import { Counter, Gauge, Histogram, Registry } from "prom-client";
import { assert, loopTurns, type TurnSource, unreachable } from "../core/index.ts";
import { METRICS, METRICS_OF, type MetricName, type MetricSpec } from "./catalogue.ts";

type Labels = Readonly<Record<string, string>>;
type Handle = Counter | Gauge | Histogram;

/** The registered metrics of one kind of process. */
export interface MetricRegistry {
  /** Sets a gauge, or a counter whose value is kept elsewhere. */
  set(name: MetricName, value: number, labels?: Labels): void;
  /** Removes all series of a metric. */
  clear(name: MetricName): void;
  /**
   * Returns a function that adds to one series of a histogram. Create it once and call it often.
   */
  observer(name: MetricName, labels: Labels): (value: number) => void;
  /**
   * The result of a scrape: calls `refresh`, then formats all metrics in slices of the event loop.
   * Concurrent scrapes share one result.
   */
  text(refresh: () => void): Promise<string>;
  readonly contentType: string;
}

export function createRegistry(kind: keyof typeof METRICS_OF): MetricRegistry {
  const registry = new Registry();
  const source = loopTurns.source();
  let building: Promise<string> | null = null;
  const handles = new Map<MetricName, Handle>();
  for (const name of METRICS_OF[kind]) {
    handles.set(name, register(METRICS[name], registry));
  }
  return {
    set(name, value, labels = {}) {
      checkLabels(METRICS[name], labels);
      const handle = handles.get(name);
      if (handle instanceof Gauge) handle.set(labels, value);
      else if (handle instanceof Counter) setCounter(handle, labels, value);
      else assert(false, `${name} is a gauge or a counter`);
    },
    clear: (name) => handles.get(name)!.reset(),
    observer(name, labels) {
      checkLabels(METRICS[name], labels);
      const handle = handles.get(name);
      assert(handle instanceof Histogram, `${name} is a histogram`);
      const child = handle.labels(labels);
      return (value) => child.observe(value);
    },
    text(refresh) {
      building ??= textOf(registry, source, refresh).finally(() => {
        building = null;
      });
      return building;
    },
    contentType: registry.contentType,
  };
}

async function textOf(
  registry: Registry,
  source: TurnSource,
  refresh: () => void,
): Promise<string> {
  if (!source.begin()) await source.turn();
  refresh();
  const texts: string[] = [];
  for (const metric of registry.getMetricsAsArray()) {
    if (!source.goOn()) await source.turn();
    texts.push(await registry.getSingleMetricAsString(metric.name));
  }
  source.goOn();
  return `${texts.join("\n\n")}\n`;
}

function register(spec: MetricSpec, registry: Registry): Handle {
  const { name, help } = spec;
  const common = { name, help, labelNames: Object.keys(spec.labels), registers: [registry] };
  switch (spec.type) {
    case "counter":
      return new Counter(common);
    case "gauge":
      return new Gauge(common);
    case "histogram":
      return new Histogram({ ...common, buckets: [...(spec.buckets ?? [])] });
    default:
      return unreachable(spec.type, "metric type");
  }
}

/** prom-client's counters can only be incremented, but the value is kept elsewhere. */
function setCounter(counter: Counter, labels: Labels, value: number): void {
  counter.remove(labels);
  counter.inc(labels, value);
}

/**
 * Limits the number of series to that in the catalogue. An empty list allows one value of any kind.
 */
function checkLabels(spec: MetricSpec, labels: Labels): void {
  for (const [label, value] of Object.entries(labels)) {
    const allowed = spec.labels[label];
    const isKnown = allowed !== undefined && (allowed.length === 0 || allowed.includes(value));
    assert(isKnown, `${spec.name} has no ${label}="${value}"`);
  }
}
