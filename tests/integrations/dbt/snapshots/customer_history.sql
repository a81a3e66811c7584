{% snapshot customer_history %}
{{ config(unique_key="customer_id", strategy="check", check_cols=["orders", "total"], target_schema="history") }}
select * from {{ ref("customer_totals") }}
{% endsnapshot %}
