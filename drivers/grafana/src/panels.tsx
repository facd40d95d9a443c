// One panel of each type of the dashboard, drawn with Grafana's component for it. The defaults are those that Grafana
// fills in for what the dashboard does not say.

import {
  type DataFrame,
  FieldColorModeId,
  type FieldConfig,
  type GrafanaTheme2,
  ThresholdsMode,
  getDisplayProcessor,
  getFieldDisplayValues,
  standardTransformers,
  standardTransformersRegistry,
  transformDataFrame,
} from '@grafana/data';
import {
  AxisPlacement,
  type GraphFieldConfig,
  GraphDrawStyle,
  LineInterpolation,
  VisibilityMode,
} from '@grafana/schema';
import { BigValue, BigValueTextMode, TimeSeries, useTheme2 } from '@grafana/ui';
import { TableNG } from '@grafana/ui/unstable';
// The style of TableNG, which Vite leaves out when it bundles that.
import '@grafana/react-data-grid/lib/styles.css';
import { firstValueFrom } from 'rxjs';
import type { Panel, Series, Stat, Table } from './dashboard';
import { type Context, run } from './prometheus';

standardTransformersRegistry.setInit(() =>
  [standardTransformers.organizeFieldsTransformer].map((transformer) => ({
    id: transformer.id,
    name: transformer.name,
    transformation: () => Promise.resolve(transformer),
    editor: () => null,
    imageDark: '',
    imageLight: '',
  }))
);

const lines: GraphFieldConfig = {
  axisPlacement: AxisPlacement.Auto,
  drawStyle: GraphDrawStyle.Line,
  fillOpacity: 0,
  lineInterpolation: LineInterpolation.Linear,
  lineWidth: 1,
  pointSize: 5,
  showPoints: VisibilityMode.Auto,
  spanNulls: false,
};

function fieldDefaults(panel: Panel): FieldConfig {
  const { thresholds, ...given } = panel.fieldConfig.defaults;
  const steps = thresholds?.steps ?? [
    { value: 0, color: 'green' },
    { value: 80, color: 'red' },
  ];
  return {
    color: { mode: panel.type === 'timeseries' ? FieldColorModeId.PaletteClassic : FieldColorModeId.Thresholds },
    mappings: [],
    ...given,
    ...(panel.type === 'timeseries' && { custom: { ...lines, ...given.custom } }),
    thresholds: {
      mode: thresholds?.mode ?? ThresholdsMode.Absolute,
      steps: steps.map((step, place) => (place === 0 ? { ...step, value: -Infinity } : step)),
    },
  };
}

/** Runs the queries of a panel, and prepares what they return for the components. */
export async function load(panel: Panel, context: Context, width: number, theme: GrafanaTheme2): Promise<DataFrame[]> {
  const answers = await Promise.all(panel.targets.map((target) => run(target, context, width)));
  const frames = await firstValueFrom(transformDataFrame(panel.transformations ?? [], answers.flat()));
  const defaults = fieldDefaults(panel);
  let seriesIndex = 0;
  return frames.map((frame) => ({
    ...frame,
    fields: frame.fields.map((field) => {
      const config = field.type === 'time' ? field.config : { ...defaults, ...field.config };
      const state = field.type === 'number' ? { ...field.state, seriesIndex: seriesIndex++ } : field.state;
      const drawn = { ...field, config, state };
      return { ...drawn, display: getDisplayProcessor({ field: drawn, theme, timeZone: 'browser' }) };
    }),
  }));
}

interface Props<T> {
  panel: T;
  frames: DataFrame[];
  context: Context;
  width: number;
  height: number;
}

function StatPanel({ panel, frames, width, height }: Props<Stat>) {
  const theme = useTheme2();
  const [value] = getFieldDisplayValues({
    fieldConfig: { defaults: {}, overrides: [] },
    reduceOptions: panel.options.reduceOptions,
    replaceVariables: (text) => text,
    theme,
    data: frames,
  });
  return (
    value && (
      <BigValue
        theme={theme}
        width={width}
        height={height}
        value={value.display}
        colorMode={panel.options.colorMode}
        graphMode={panel.options.graphMode}
        textMode={BigValueTextMode.Auto}
        count={1}
      />
    )
  );
}

function SeriesPanel({ panel, frames, context, width, height }: Props<Series>) {
  return (
    <TimeSeries
      frames={frames}
      width={width}
      height={height}
      timeRange={context.range}
      timeZone="browser"
      legend={{ ...panel.options.legend, calcs: [] }}
    />
  );
}

function TablePanel({ panel, frames, width, height }: Props<Table>) {
  const [frame] = frames;
  return frame && <TableNG data={frame} width={width} height={height} noHeader={!panel.options.showHeader} />;
}

/** The inside of a panel. */
export function Inside({ panel, ...props }: Props<Panel>) {
  if (!props.frames.some((frame) => frame.length > 0)) {
    return <div className="empty">No data</div>;
  }
  switch (panel.type) {
    case 'stat':
      return <StatPanel panel={panel} {...props} />;
    case 'timeseries':
      return <SeriesPanel panel={panel} {...props} />;
    case 'table':
      return <TablePanel panel={panel} {...props} />;
  }
}
