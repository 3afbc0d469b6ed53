import { Counter, Gauge, Histogram, Registry } from "prom-client";
import { assert, loopTurns, type TurnSource, unreachable } from "../core/index.ts";
import { METRICS, METRICS_OF, type MetricName, type MetricSpec } from "./catalogue.ts";

type Labels = Readonly<Record<string, string>>;
type Handle = Counter | Gauge | Histogram;

/** The metrics of one kind of process, registered; and nothing beside them. */
export interface MetricRegistry {
  /** Sets a gauge, or a counter that is kept elsewhere to what it stands at. */
  set(name: MetricName, value: number, labels?: Labels): void;
  /** Forgets all series of a metric. */
  clear(name: MetricName): void;
  /** What adds to one series of a histogram; made once, called often. */
  observer(name: MetricName, labels: Labels): (value: number) => void;
  /**
   * What a scrape gets: `refresh` first, then all metrics, in slices of the event loop. Scrapes
   * that come while one is under way share it.
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

/** prom-client's counters only go up by steps; the one kept elsewhere has the truth. */
function setCounter(counter: Counter, labels: Labels, value: number): void {
  counter.remove(labels);
  counter.inc(labels, value);
}

/**
 * Holds the number of series where the catalogue says it is. An empty list takes one value of any
 * kind.
 */
function checkLabels(spec: MetricSpec, labels: Labels): void {
  for (const [label, value] of Object.entries(labels)) {
    const allowed = spec.labels[label];
    const isKnown = allowed !== undefined && (allowed.length === 0 || allowed.includes(value));
    assert(isKnown, `${spec.name} has no ${label}="${value}"`);
  }
}
