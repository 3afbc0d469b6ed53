import { METRICS, type MetricSpec } from "./catalogue.ts";
import { HEALTH_CODE_NAMES, HEALTH_CODES } from "./health-codes.ts";

function labelsOf({ labels }: MetricSpec): string {
  return Object.entries(labels)
    .map(([label, values]) => {
      const shown = values.map((value) => `\`${value}\``).join(" ");
      return `\`${label}\`: ${shown === "" ? "one value" : shown}`;
    })
    .join("; ");
}

/** The reference page of health codes, in Markdown. */
export function renderHealthReference(): string {
  const lines = [
    "# Health",
    "",
    "What can be the matter with an agent that runs. `GET /v1/status` lists what is the matter now",
    "with the details of the case, `GET /healthz` the codes alone; `hearth_health{code}` is 1",
    "meanwhile, and the log says when it began and ended. The codes are stable. None of them makes",
    "`/readyz` say no: engines are served all the same.",
    "",
    "| code | severity | meaning | what to do |",
    "|---|---|---|---|",
    ...HEALTH_CODE_NAMES.map((code) => {
      const { severity, meaning, fix } = HEALTH_CODES[code];
      return `| \`${code}\` | ${severity} | ${meaning} | ${fix} |`;
    }),
  ];
  return `${lines.join("\n")}\n`;
}

/** The reference page of metrics, in Markdown. */
export function renderMetricsReference(): string {
  const specs: MetricSpec[] = Object.values(METRICS);
  const lines = [
    "# Metrics",
    "",
    "`GET /metrics` answers in the Prometheus text format. Labels have these values and no",
    "others, so the number of series is bounded.",
    "",
    "| name | type | meaning | labels |",
    "|---|---|---|---|",
    ...specs.map(
      (spec) => `| \`${spec.name}\` | ${spec.type} | ${spec.help} | ${labelsOf(spec)} |`,
    ),
    "",
    "## Histograms",
    "",
    ...specs
      .filter(({ buckets }) => buckets !== undefined)
      .map(({ name, buckets }) => `- \`${name}\`: buckets up to ${buckets!.join(", ")}`),
  ];
  return `${lines.join("\n")}\n`;
}
