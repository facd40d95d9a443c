// The dashboard that contrib/grafana contains. A part of its format that the page does not draw is an error, not a gap.

import type { DataTransformerConfig, FieldConfig, ReduceDataOptions } from '@grafana/data';
import type { VizLegendOptions } from '@grafana/schema';
import type { BigValueColorMode, BigValueGraphMode } from '@grafana/ui';
import json from '../../../contrib/grafana/leasehold.json';

export interface Target {
  refId: string;
  expr: string;
  legendFormat: string;
  instant: boolean;
  format: 'time_series' | 'table';
}

interface Place {
  gridPos: { x: number; y: number; w: number; h: number };
  id: number;
  title: string;
}

export interface Row extends Place {
  type: 'row';
}

interface Drawn extends Place {
  description: string;
  fieldConfig: { defaults: FieldConfig; overrides: [] };
  targets: Target[];
  transformations?: DataTransformerConfig[];
}

export interface Stat extends Drawn {
  type: 'stat';
  options: { reduceOptions: ReduceDataOptions; colorMode: BigValueColorMode; graphMode: BigValueGraphMode };
}

export interface Series extends Drawn {
  type: 'timeseries';
  options: { legend: VizLegendOptions };
}

export interface Table extends Drawn {
  type: 'table';
  options: { showHeader: boolean };
}

export type Panel = Stat | Series | Table;

export interface Variable {
  name: string;
  label: string;
  /** `label_values(METRIC, LABEL)` */
  query: string;
  allValue: string;
}

interface RawVariable {
  type: string;
  name: string;
  label: string;
  query: string | { query: string };
  allValue?: string;
}

const raw = json as unknown as {
  title: string;
  panels: Array<Row | Panel>;
  templating: { list: RawVariable[] };
};

export const title = raw.title;

export const rows = raw.panels.filter((panel): panel is Row => panel.type === 'row');

export const panels = raw.panels.filter((panel): panel is Panel => panel.type !== 'row');

for (const panel of panels) {
  if (!['stat', 'timeseries', 'table'].includes(panel.type)) {
    throw new Error(`${panel.title}: panels of type ${panel.type} are not drawn`);
  }
  if (panel.fieldConfig.overrides.length > 0) {
    throw new Error(`${panel.title}: overrides are not drawn`);
  }
}

export const variables: Variable[] = raw.templating.list
  .filter((variable) => variable.type === 'query')
  .map(({ name, label, query, allValue }) => ({
    name,
    label,
    query: typeof query === 'string' ? query : query.query,
    allValue: allValue ?? '.*',
  }));
