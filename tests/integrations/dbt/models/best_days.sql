select day, total, rank() over (order by total desc) as place from {{ ref("sales_by_day") }} qualify place <= 5
